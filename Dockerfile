# The image of the sidecar: Python, the pinned packages, the program; no compiler, no pip of its own, no root.
#
#   docker build -t sidecar --build-arg REVISION=$(git rev-parse HEAD) .
#   docker run --read-only --tmpfs /tmp -v ./folder:/etc/sidecar:ro -v sidecar-data:/var/lib/sidecar -p 127.0.0.1:8080:8080 sidecar
#
# The folder holds sidecar.yaml (`sidecar init` writes one) with `data: /var/lib/sidecar`, the only path that is written.
# `--target git` adds git and ssh for `policy.source.git`; `--target demo` adds the SDKs for deploy/compose.
# For both architectures, with SBOM and provenance:
#
#   docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --provenance=mode=max -t … --push .
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY deploy/runtime.lock deploy/
RUN python -m venv /opt/sidecar \
 && /opt/sidecar/bin/python -m pip install --no-compile --no-deps --require-hashes -r deploy/runtime.lock
COPY deploy/build.lock deploy/
RUN python -m venv /opt/build \
 && /opt/build/bin/python -m pip install --no-deps --require-hashes -r deploy/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY models models
COPY policies policies
COPY sidecar sidecar
# ssh looks up the name of its user.
RUN /opt/build/bin/hatchling build -t wheel -d /dist \
 && /opt/sidecar/bin/python -m pip install --no-compile --no-deps --no-index /dist/*.whl \
 && /opt/sidecar/bin/python -m pip uninstall --yes pip \
 && PYTHONPYCACHEPREFIX=/opt/sidecar/bytecode python -m compileall -q --invalidation-mode unchecked-hash \
    -x /site-packages/pip/ "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" /opt/sidecar/lib \
 && install -d -m 0700 -o 65532 -g 65532 /data \
 && install -d /accounts \
 && sed '$a sidecar:x:65532:65532::/nonexistent:/usr/sbin/nologin' /etc/passwd > /accounts/passwd \
 && sed '$a sidecar:x:65532:' /etc/group > /accounts/group

FROM python:${PYTHON}-slim AS runtime
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="sidecar" \
      org.opencontainers.image.description="Policy-as-code authorization for MCP servers and A2A agents" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The base image has no bytecode of the standard library, and a read-only container cannot write it: the image has all.
ENV PATH=/opt/sidecar/bin:$PATH PYTHONPYCACHEPREFIX=/opt/sidecar/bytecode PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    MALLOC_MMAP_THRESHOLD_=65536 MALLOC_TRIM_THRESHOLD_=131072
COPY --from=build /accounts/ /etc/
COPY --from=build /opt/sidecar /opt/sidecar
COPY --from=build --chown=65532:65532 /data /var/lib/sidecar
USER 65532:65532
WORKDIR /etc/sidecar
EXPOSE 8080 9090
HEALTHCHECK --interval=30s --timeout=5s --start-period=5s CMD ["sidecar", "healthcheck", "-c", "/etc/sidecar/sidecar.yaml"]
ENTRYPOINT ["sidecar"]
CMD ["serve", "-c", "/etc/sidecar/sidecar.yaml"]

FROM runtime AS git
USER 0:0
# Not pinned: the distribution removes a version from its archive with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates git openssh-client \
 && rm -rf /var/lib/apt/lists/*
USER 65532:65532

FROM build AS demo-build
COPY deploy/demo.lock deploy/
RUN python -m venv /opt/demo \
 && /opt/demo/bin/python -m pip install --no-deps --require-hashes -r deploy/demo.lock \
 && /opt/demo/bin/python -m pip install --no-deps --no-index /dist/*.whl

FROM runtime AS demo
COPY --from=demo-build /opt/demo /opt/demo
ENV PATH=/opt/demo/bin:$PATH
HEALTHCHECK NONE
ENTRYPOINT ["python"]
CMD ["-m", "sidecar", "--version"]

# The last stage is what a build without --target makes.
FROM runtime
