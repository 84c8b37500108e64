"""Reads the rows of a pycasbin adapter, in a process of its own that is started by this file's path.

Adapters are third-party code, which may print, log, hang or end the process. The process's standard streams go to the
null device. It answers each order, which is one line of JSON, with one line of JSON:

    {"adapter": {...}, "watcher": {...}, "hidden": [...]}   what to make, and texts that no error repeats; no answer
    {"read": [models], "most_bytes": n}                     {"digest": ..., "rows": n, "cpu_s": s}, {"unfit": why}
                                                            or {"failed": why}
    {"write": path}                                         {"written": path} or {"failed": why}

The process writes {"changed": true} without an order when the watcher reports a change, at most once after each
reading. It never asks an adapter to save. It imports nothing else of the sidecar and ends when its input ends.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import IO, Any, Final

NICENESS: Final = 5  # calls take precedence
MAX_TOLD: Final = 300
_USER_INFO: Final = re.compile(r"://[^/\s]*@")


class UnfitRow(Exception):
    """A row that cannot be written to a policy file and read back equal."""


class RowReader:
    """Reads rows by one adapter. `order` is the first one; `say` writes an answer."""

    def __init__(self, order: Mapping[str, Any], answers: IO[bytes]) -> None:
        self._order, self._answers = order, answers
        self._adapter: Any = None
        self._watcher: Any = None
        self._text = b""
        self._saying, self._told = threading.Lock(), True

    def read(self, models: Sequence[str], most_bytes: int) -> Mapping[str, Any]:
        """Reads all rows, for models with these texts. Returns the answer: the digest and number of the rows and the
        CPU seconds of reading them, or why they are unfit, or why reading failed."""
        self._told = False  # later changes may not be among the rows
        adapter, self._adapter = self._adapter, None  # stored again only if it works
        try:
            if self._watcher is None and self._order["watcher"]:
                watcher = _made(self._order["watcher"])
                watcher.set_update_callback(self._changed)
                self._watcher = watcher
            adapter = adapter or _made(self._order["adapter"])
            model = _bare_model(models)
            began_s = time.process_time()
            waiting = adapter.load_policy(model)
            if hasattr(waiting, "__await__"):
                waiting.close()
                raise TypeError("its load_policy is a coroutine; only adapters of the synchronous Enforcer are read")
            rows = [
                (key, row) for section in model.model.values() for key, one in section.items() for row in one.policy
            ]
            self._adapter = adapter
        except BaseException as error:  # SystemExit too
            return {"failed": self._shown(error)}
        try:
            text = "".join(f"{line}\n" for line in lines_of(rows)).encode()
        except UnfitRow as error:
            return {"unfit": str(error)}
        if len(text) > most_bytes:
            return {"unfit": f"its rows are more than {most_bytes // 2**20} MiB"}
        self._text = text
        return {"digest": sha256(text).hexdigest(), "rows": len(rows), "cpu_s": time.process_time() - began_s}

    def write(self, path: str) -> Mapping[str, Any]:
        """Writes the rows that were read last into a new file. Returns the answer."""
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(self._text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return {"failed": str(error)}
        return {"written": path}

    def say(self, answer: Mapping[str, Any]) -> None:
        with self._saying:
            self._answers.write(json.dumps(answer).encode() + b"\n")
            self._answers.flush()

    def _changed(self, *_: object, **__: object) -> None:
        """The callback of the watcher, which calls it in a thread of its own."""
        if not self._told:
            self._told = True
            self.say({"changed": True})

    def _shown(self, error: BaseException) -> str:
        text = f"{type(error).__name__}: {error}"
        for secret in self._order["hidden"]:
            text = text.replace(secret, "***")
        words = " ".join(_USER_INFO.sub("://***@", text).split())
        return "".join(character for character in words if character.isprintable())[:MAX_TOLD]


def _made(order: Mapping[str, Any]) -> Any:
    """Returns the object of a class, or of a function's return value, by dotted name."""
    module, _, name = order["class"].replace(":", ".").rpartition(".")
    make = getattr(importlib.import_module(module), name)
    arguments = order["arguments"]
    return make(**arguments) if isinstance(arguments, dict) else make(*arguments)


class _Open(dict[str, Any]):
    """A dictionary that has every key. Casbin's reader drops rows of types that a model does not define."""

    def __init__(self, content: Mapping[str, Any], make: Any) -> None:
        super().__init__(content)
        self._make = make

    def __missing__(self, key: str) -> Any:
        self[key] = made = self._make()
        return made

    def __contains__(self, key: object) -> bool:
        return True

    def keys(self) -> Any:
        return self


def _bare_model(texts: Sequence[str]) -> Any:
    """Returns a Casbin model with the definitions of all these and no rows. It accepts rows of any type."""
    from casbin.model import Assertion, Model

    bare = Model()
    found: dict[str, dict[str, Any]] = {"p": {}, "g": {}}
    for text in texts:
        model = Model()
        model.load_model_from_text(text)
        for section, definitions in model.model.items():
            for key, definition in definitions.items():
                found.setdefault(section, {}).setdefault(key, definition)
    sections = {name: _Open(definitions, Assertion) for name, definitions in found.items()}
    bare.model = _Open(sections, lambda: _Open({}, Assertion))
    return bare


def lines_of(rows: Sequence[tuple[str, Sequence[Any]]]) -> Iterator[str]:
    """Yields the lines of rows, given by type and values, in the dialect of Casbin's policy files. Raises UnfitRow."""
    from casbin.persist.adapter import _extract_tokens

    for number, (key, row) in enumerate(rows, start=1):
        if not isinstance(row, list | tuple):
            raise UnfitRow(f"row {number} ({row!a:.200}): a row is a list of texts")
        values = [key, *row]
        if why := next((why for value in values if (why := _unfit(value))), ""):
            raise UnfitRow(f"{_place(number, values)}: {why}")
        line = ", ".join(values)
        try:
            same = _extract_tokens(line) == values
        except IndexError:  # a closing bracket without an opening one
            same = False
        if not same:
            why = "a file cannot contain it: commas must be inside brackets, and brackets must be paired"
            raise UnfitRow(f"{_place(number, values)}: {why}")
        yield line


def _unfit(value: object) -> str:
    if not isinstance(value, str):
        return f"{value!r:.40} is a {type(value).__name__}, and rows are texts"
    if value != value.strip():
        return f"{value!r:.40} begins or ends with a blank, which Casbin drops"
    if len(value.splitlines()) > 1 or "\0" in value:
        return f"{value!r:.40} contains a line break"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{value!r:.40} is not Unicode text"
    return ""


def _place(number: int, values: Sequence[Any]) -> str:
    return f"row {number} ({', '.join(map(str, values))!a:.200})"


def main() -> None:
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    logging.disable(logging.CRITICAL)
    with suppress(OSError):
        os.nice(NICENESS)
    reader = RowReader(json.loads(orders.readline()), answers)
    with suppress(OSError):
        for line in orders:
            order = json.loads(line)
            answer = (
                reader.write(order["write"]) if "write" in order else reader.read(order["read"], order["most_bytes"])
            )
            reader.say(answer)
    os._exit(0)  # threads of a watcher may still run


if __name__ == "__main__":
    main()
