# Every target makes what it needs: the virtual environment, the pinned packages, the servers.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test check fix bench lock
demo: $(READY) ; $(BIN)/sidecar demo
test: $(READY) ; $(BIN)/python -m pytest
check: $(READY) ; $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports
fix: $(READY) ; $(BIN)/ruff check --fix . && $(BIN)/ruff format .
bench: $(READY) ; $(BIN)/python -m bench

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
