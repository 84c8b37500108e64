# Every target makes what it needs: the virtual environments, the pinned packages, the servers.
# `lock` alone needs a tool of its own, uv, on PATH (or make lock UV=...); it takes the newest that pyproject.toml allows.
PYTHON ?= python3
UV ?= uv
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
MCP1 := .venv-mcp1
INSTALL := -m pip install --quiet --disable-pip-version-check --no-deps
COMPILE := $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate

.PHONY: demo test check fix bench lock
demo: $(READY) ; $(BIN)/sidecar demo
test: $(READY) $(MCP1)/ready ; $(BIN)/python -m pytest
check: $(READY) ; $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports
fix: $(READY) ; $(BIN)/ruff check --fix . && $(BIN)/ruff format .
bench: $(READY) ; $(BIN)/python -m bench && $(BIN)/python -m bench.readme
lock: ; $(COMPILE) pyproject.toml --extra demo --group dev -o requirements.lock && $(COMPILE) pyproject.toml -c requirements.lock -o deploy/runtime.lock && echo 'mcp>=1.30,<2' | $(COMPILE) - -o tests/peers/mcp1.lock

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --require-hashes -r requirements.lock
	$(BIN)/python $(INSTALL) --no-build-isolation --editable .
	touch $@

# The last 1.x of the official MCP SDK, a peer in the tests: two majors do not fit into one environment.
$(MCP1)/ready: tests/peers/mcp1.lock
	$(PYTHON) -m venv $(MCP1)
	$(MCP1)/bin/python $(INSTALL) --require-hashes -r tests/peers/mcp1.lock
	touch $@
