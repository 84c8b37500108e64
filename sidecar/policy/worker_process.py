"""Reads large policies in a separate process, so that calls are not delayed.

Reading a million rows takes seconds of one core, and a thread would take them from the event loop. The process reads,
checks and sorts, and sends back the finished arrays. It ends with its parent, however the parent ends: on Linux the
kernel ends it with the thread that started it; on other systems it exits when its input is closed, as soon as its
interpreter is free. A small policy is read in the serving process.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from sidecar.errors import Fault, PolicyError, fault_in
from sidecar.policy.conditions import Language
from sidecar.policy.faults import Faults
from sidecar.policy.files import policy_files
from sidecar.policy.roles import RoleLinks
from sidecar.policy.source import NO_CASBIN, NO_IDS, Models, PolicySource, load_policy, stock_tables
from sidecar.policy.table import RowTable, TextPool
from sidecar.settings.policy import CasbinSettings, PolicyScope
from sidecar.vocabulary import PermissionKind

if TYPE_CHECKING:
    from sidecar.policy.stock.reading import StockSource

SMALL_BYTES = 256 * 1024  # about 3,000 rows, a tenth of a second
DEADLINE_S = 120.0
NICENESS = 5  # calls take precedence
BEGINNING = """\
import ctypes, importlib, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: before anything that takes long
importlib.import_module(sys.argv[1]).serve_order(sys.stdin.buffer, sys.stdout.buffer)  # as the orders name it
sys.stdout.flush()
os._exit(0)  # a thread reads the input, for which a normal end would wait
"""


class PolicyReading:
    """A load that a thread waits for. Each method writes before it reads, so that at least one of two concurrent ones
    sees the other's change."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._abandoned = False

    def abandon(self) -> None:
        self._abandoned = True
        if self._process is not None:
            self._process.kill()

    def begun_by(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self._abandoned:
            process.kill()


def load_policy_aside(
    models: Models,
    policies: Path,
    *,
    scopes: Sequence[PolicyScope] = (),
    names: frozenset[str] | None = None,
    agent_ids: Mapping[str, str] = NO_IDS,
    casbin: CasbinSettings = NO_CASBIN,
    small_bytes: int = SMALL_BYTES,
    reading: PolicyReading | None = None,
) -> PolicySource:
    """Runs `load_policy` in a separate process if the files of rows have more than `small_bytes`. Blocks: call it in a
    thread; `reading` can abandon the wait.

    Raises PolicyError, also when the process cannot be started, fails, or takes longer than two minutes."""
    if _size(models, policies, casbin.rows) <= small_bytes:
        return load_policy(models, policies, scopes=scopes, names=names, agent_ids=agent_ids, casbin=casbin)
    options = {"scopes": scopes, "names": names, "agent_ids": dict(agent_ids), "casbin": casbin}
    order = (models.absolute() if isinstance(models, Path) else models, policies.absolute()), options
    try:
        with process_aside(__name__, DEADLINE_S, reading) as (orders, results):
            pickle.dump(order, orders)
            orders.flush()  # left open: the process exits when it is closed
            faults: list[Fault] | None = pickle.load(results)
            if faults is not None:
                raise PolicyError(faults)
            return unpack(results)
    except (EOFError, OSError, pickle.UnpicklingError):
        hint = f"it ran out of memory, or took longer than {DEADLINE_S:.0f} s"
        raise PolicyError(
            [fault_in(policies, "the process that reads the policy ended", code="P008", hint=hint)]
        ) from None


@contextmanager
def process_aside(
    module: str, deadline_s: float, reading: PolicyReading | None = None
) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Runs `serve_order` of a module in a separate process; yields its input and its output. It is killed at the end,
    and after `deadline_s`: its output then ends. Blocks: call it in a thread. Raises OSError if it cannot be
    started."""
    # -P: no module is imported from the working directory. In a session of its own, the process receives no signals of
    # a terminal.
    command = [sys.executable, "-P", "-c", BEGINNING, module]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    killer = threading.Timer(deadline_s, process.kill)
    try:
        killer.start()
        if reading is not None:
            reading.begun_by(process)
        yield process.stdin, process.stdout
    finally:
        killer.cancel()
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # input that the process did not read
                pipe.close()
        process.wait()


def _size(models: Models, policies: Path, rows: Path | None) -> int:
    total = 0
    named = () if isinstance(models, Path) else [path for files in models.values() for path in files.policy]
    for path in {*(file.path for file in policy_files(policies, Faults())), *named, *filter(None, (rows,))}:
        with suppress(OSError):
            total += path.stat().st_size
    return total


def serve_order(orders: IO[bytes], out: IO[bytes]) -> None:
    """Carries out the order of `load_policy_aside`: writes the faults, or None and the policy."""
    folders, options = pickle.load(orders)
    give_way(orders)
    try:
        source = load_policy(*folders, **options)
    except PolicyError as error:
        pickle.dump(list(error.faults), out)
        return
    pickle.dump(None, out)
    pack(source, out)


def give_way(orders: IO[bytes]) -> None:
    """Ends this process when its input is closed, and gives precedence to calls. The order must have been read."""
    threading.Thread(target=_end_with, args=(orders,), daemon=True).start()
    with suppress(OSError):
        os.nice(NICENESS)


def _end_with(orders: IO[bytes]) -> None:
    """Ends the process when its input is closed, because the parent then does not wait for the result."""
    orders.read(1)
    os._exit(1)


# --- a policy as a sequence of small pickles ------------------------------------------------------------------------
# Arrays go as they are, texts and links some thousands at a time: each unpickling holds the GIL for a millisecond at
# most. Conditions go as text and are compiled again. The pickles come only from a process that was started here.

PIECE = 5_000
_ARRAYS = ("sub", "obj", "shape", "line", "file", "flags")
T = TypeVar("T")


def pack(source: PolicySource, out: IO[bytes]) -> None:
    """Writes a policy as `unpack` reads it."""
    table = next(iter(source.tables.values()))  # all share the texts and files
    stock = list({id(found.source): found.source for found in source.stock.values()}.values())
    head = {
        "models": dict(source.models),
        "revision": source.revision,
        "warnings": source.warnings,
        "conditions": list(source.conditions),
        "files": table.files,
        "domains": list(source.domains),
        "stock": [
            ([kind for kind, found in source.stock.items() if found.source is one], _without_rows(one)) for one in stock
        ],
        "casbin": source.casbin,
        "attributes": source.attributes,
    }
    pickle.dump(head, out, protocol=5)
    _write_pieces(table.texts.texts, out)
    for links in (source.roles, source.sets, *source.domains.values()):
        _write_pieces(links.parents.items(), out)
    for kind in source.models:
        table = source.tables[kind]
        for name in _ARRAYS:
            pickle.dump(getattr(table, name), out, protocol=5)
        pickle.dump(source.indexes[kind], out, protocol=5)
        _write_pieces(table.shapes, out)
        _write_pieces(table.notes.items(), out)
    for one in stock:
        _write_pieces(one.rows.texts, out)
        for column in one.rows.columns:
            pickle.dump(column, out, protocol=5)
        pickle.dump(one.index, out, protocol=5)
        for rows in one.links.values():
            _write_pieces(rows, out)
    out.flush()


def unpack(source: IO[bytes]) -> PolicySource:
    head: Mapping[str, Any] = pickle.load(source)
    texts = TextPool()
    texts.texts.clear()
    texts.ids.clear()
    for piece in _pieces(source):
        texts.ids.update(zip(piece, range(len(texts.texts), len(texts.texts) + len(piece)), strict=True))
        texts.texts += piece
    links = [_links(source) for _ in range(2 + len(head["domains"]))]
    tables: dict[PermissionKind, RowTable] = {}
    indexes = {}
    for kind in head["models"]:
        table = tables[kind] = RowTable(kind, texts, head["files"])
        for name in _ARRAYS:
            setattr(table, name, pickle.load(source))
        indexes[kind] = pickle.load(source)
        for piece in _pieces(source):
            for shape in piece:
                table.add_shape(shape)
        for piece in _pieces(source):
            table.notes.update(piece)
    stock = stock_tables([(kinds, _with_rows(one, source)) for kinds, one in head["stock"]])
    language = Language()
    return PolicySource(
        models=head["models"],
        tables=tables,
        indexes=indexes,
        roles=links[0],
        sets=links[1],
        domains=dict(zip(head["domains"], links[2:], strict=True)),
        conditions={text: language.compile(text) for text in head["conditions"]},
        revision=head["revision"],
        warnings=head["warnings"],
        stock=stock,
        casbin=head["casbin"],
        attributes=head["attributes"],
    )


def _without_rows(stock: StockSource) -> StockSource:
    from sidecar.policy.stock.row_index import CompactRows

    return replace(stock, rows=CompactRows([], []), index=(), links=dict.fromkeys(stock.links, ()))


def _with_rows(stock: StockSource, source: IO[bytes]) -> StockSource:
    texts = list(chain.from_iterable(_pieces(source)))
    columns = [pickle.load(source) for _ in stock.model.columns]
    index = pickle.load(source)
    links = {key: list(chain.from_iterable(_pieces(source))) for key in stock.links}
    return replace(stock, rows=type(stock.rows)(texts, columns), index=index, links=links)


def _links(source: IO[bytes]) -> RoleLinks:
    parents: dict[str, tuple[str, ...]] = {}
    for piece in _pieces(source):
        parents.update(piece)
    return RoleLinks(parents)


def _write_pieces(things: Iterable[T], out: IO[bytes]) -> None:
    left = iter(things)
    while piece := list(islice(left, PIECE)):
        pickle.dump(piece, out, protocol=5)
    pickle.dump(None, out, protocol=5)


def _pieces(source: IO[bytes]) -> Iterator[list[Any]]:
    while (piece := pickle.load(source)) is not None:
        yield piece
