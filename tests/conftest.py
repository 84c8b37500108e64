"""How is the interpreter set that the tests run in, and how patient are they?

As a sidecar's is once it has begun: its collector need not walk, again and again, what was there before the first test.
And as patient as a machine needs that is slow, and busy with other things: an example of Hypothesis takes its time.

Ctrl-C has a handler of its own, which does what Python's does. With Python's, each loop of asyncio puts one there that
knows its task, and `signal` looks for that among an enum's members: it is none, and the error that nobody sees has all
that a test's world is made of in words. That was a quarter of the time of such a test.
"""

import gc
import importlib
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from sidecar.cli.serve import settle_interpreter
from tests.flow import forks
from tests.valkey import Valkey, running_valkey

settings.register_profile("patient", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
HERE = Path(__file__).parent
os.umask(0o027)  # who keeps secrets in files closes them to others, and the sidecar sees to it that they did


def pytest_configure(config: pytest.Config) -> None:
    """One process forks commands for all workers of a run."""
    if hasattr(config, "workerinput"):
        forks.started.update(config.workerinput["forks"])
        return
    stack = ExitStack()
    config.add_cleanup(stack.close)
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="forks")))  # a socket's path holds 107 bytes
    for number, interpreter in enumerate(forks.PRELOADED):
        if Path(interpreter).exists():
            forks.started[interpreter] = str(stack.enter_context(forks.bin_in(folder / str(number), interpreter)))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["forks"] = forks.started


def pytest_sessionstart(session: pytest.Session) -> None:
    """In a worker that runs all tests, import the modules, beginning where no other worker begins. Rewriting a module's
    asserts takes longer than the rest of its import, and the result is kept for the other workers."""
    config = session.config
    if config.args_source is not config.ArgsSource.TESTPATHS or not hasattr(config, "workerinput"):
        return
    gc.disable()  # nothing of what is imported and collected is garbage; `settle_interpreter` enables it again
    paths = sorted(path for pattern in config.getini("python_files") for path in HERE.rglob(pattern))
    place, workers = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    first = len(paths) * place // workers
    for path in paths[first:] + paths[:first]:
        with suppress(Exception):  # reported when it is collected
            importlib.import_module(".".join(path.relative_to(HERE.parent).with_suffix("").parts))


def pytest_collection_finish() -> None:
    settle_interpreter()
    signal.signal(signal.SIGINT, interrupted)


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    """A store of the module's own."""
    with running_valkey() as server:
        yield server


def interrupted(number: int, frame: FrameType | None) -> None:
    signal.default_int_handler(number, frame)
