# The image of the sidecar: Python, the pinned packages, the program; no compiler, no pip of its own, no root.
#
#   docker build -t sidecar .
#   docker run --read-only --tmpfs /tmp -v ./folder:/etc/sidecar:ro -v sidecar-data:/var/lib/sidecar -p 127.0.0.1:8080:8080 sidecar
#
# The folder holds sidecar.yaml (`sidecar init` writes one) with `data: /var/lib/sidecar`, the only place written to.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY deploy/runtime.lock deploy/
RUN python -m venv /opt/sidecar \
 && /opt/sidecar/bin/python -m pip install --no-compile --no-deps --require-hashes -r deploy/runtime.lock
COPY requirements.lock .
RUN python -m venv /opt/build \
 && /opt/build/bin/python -m pip install --no-deps --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY models models
COPY policies policies
COPY sidecar sidecar
RUN /opt/build/bin/hatchling build -t wheel -d /dist \
 && /opt/sidecar/bin/python -m pip install --no-compile --no-deps --no-index /dist/*.whl \
 && /opt/sidecar/bin/python -m pip uninstall --yes pip \
 && PYTHONPYCACHEPREFIX=/opt/sidecar/bytecode python -m compileall -q --invalidation-mode unchecked-hash \
    -x /site-packages/pip/ "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" /opt/sidecar/lib \
 && install -d -m 0700 -o 65532 -g 65532 /data

FROM python:${PYTHON}-slim
# The base image has no bytecode of the standard library, and a read-only container can write none: all of it comes along.
ENV PATH=/opt/sidecar/bin:$PATH PYTHONPYCACHEPREFIX=/opt/sidecar/bytecode PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    MALLOC_MMAP_THRESHOLD_=65536 MALLOC_TRIM_THRESHOLD_=131072
COPY --from=build /opt/sidecar /opt/sidecar
COPY --from=build --chown=65532:65532 /data /var/lib/sidecar
USER 65532:65532
WORKDIR /etc/sidecar
EXPOSE 8080 9090
HEALTHCHECK --interval=30s --timeout=5s --start-period=5s CMD ["sidecar", "healthcheck", "-c", "/etc/sidecar/sidecar.yaml"]
ENTRYPOINT ["sidecar"]
CMD ["serve", "-c", "/etc/sidecar/sidecar.yaml"]
