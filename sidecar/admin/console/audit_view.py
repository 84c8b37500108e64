"""Reads the audit log for pages: its place, the records that a query selects, and records without their arguments."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from sidecar.admin.console.form_fields import FormFields
from sidecar.admin.console.log_rows import SEARCH_S
from sidecar.admin.console.page_process import PageProcess
from sidecar.admin.console.request import ConsoleFault
from sidecar.admin.routes import OperatorAction
from sidecar.audit.log_blocks import LogFiles
from sidecar.audit.record import BLANK
from sidecar.audit.record_filter import RecordFilter, moment_from
from sidecar.audit.search import LogPlaces, Logs
from sidecar.audit.sinks import place_of
from sidecar.protocols.jsonrpc import malformed
from sidecar.settings.sidecar_file import Settings

FURTHER_S: Final = 2.0
READ_S: Final = 30.0
MAX_READERS: Final = 2
_PLACES: Final = re.compile(r"(\d{1,3}\.\d{1,19})(,\d{1,3}\.\d{1,19})*")

T = TypeVar("T")


@dataclass(slots=True)
class AuditView:
    """The logs of this sidecar, with a bound on concurrent readers. Logs in files are those of all workers. Of other
    logs, there are only records in memory, which this worker has written since a page first needed them."""

    app: OperatorAction
    process: PageProcess
    _readers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_READERS))

    @property
    def settings(self) -> Settings:
        return self.app.desk.live.current.settings

    @property
    def is_in_files(self) -> bool:
        return self.settings.audit.sink == "file"

    def logs(self) -> Logs:
        settings = self.settings
        if (recent := self.app.recent_records()) is not None:
            return {settings.server.worker: recent}
        return {worker: LogFiles(path) for worker, path in settings.audit_logs.items()}

    def source(self) -> Mapping[str, Any]:
        """Where the log is, as data for pages."""
        settings = self.settings
        return {"in_files": self.is_in_files, "place": place_of(settings), "workers": len(settings.worker_numbers) or 1}

    async def read(self, work: Callable[[Logs], T]) -> T:
        """The result of `work` on the logs. It runs in the page process, or for lines in the memory of this process in
        a thread. Raises ConsoleFault if the logs cannot be read, or not in time."""
        try:
            async with asyncio.timeout(READ_S), self._readers:
                looking = partial(work, self.logs())
                return await (self.process.run(looking) if self.is_in_files else asyncio.to_thread(looking))
        except TimeoutError:
            raise ConsoleFault(503, "the audit log cannot be read in time: look again in a moment") from None
        except OSError as error:
            raise ConsoleFault(503, f"the audit log cannot be read: {error.strerror or error}") from None


def name_pattern(text: str) -> str:
    """The pattern for a filter's text. A text with `:` or `*` is the whole pattern; any other matches anywhere in a
    name."""
    return text if not text or ":" in text or "*" in text else f"*{text}*"


def moment_in(query: FormFields, name: str) -> str:
    """A time in the records' format, given as RFC 3339 or as a span back from now; "" if there is none. Raises
    Refusal(MALFORMED_CALL)."""
    text = query.text(name, most=64)
    try:
        return moment_from(text) if text else ""
    except ValueError:
        raise malformed(f"{name}: a time such as 2026-11-27T12:00:00Z, or a span back from now: 15m, 2h, 7d") from None


def places_in(query: FormFields, name: str) -> LogPlaces | None:
    """Places in the logs, as `text_of` writes them; None if there are none. Raises Refusal(MALFORMED_CALL)."""
    text = query.text(name, most=2048)
    if not text:
        return None
    if not _PLACES.fullmatch(text):
        raise malformed(f"{name}: this is not the place of a page")
    pairs = (part.split(".") for part in text.split(","))
    return {int(worker): int(seq) for worker, seq in pairs}


def search_s(query: FormFields) -> float:
    """The longest duration of a search in seconds; longer if the user asks to search further."""
    return FURTHER_S if query.choice("search", ("further",)) else SEARCH_S


def text_of(places: LogPlaces | None) -> str:
    """Places in the logs as a field of a query; "" for none."""
    return ",".join(f"{worker}.{seq}" for worker, seq in sorted((places or {}).items()))


def filter_of(query: FormFields, names: Sequence[str]) -> RecordFilter:
    """The filter of a query, by the names of its fields. Raises Refusal(MALFORMED_CALL)."""
    given: dict[str, Any] = {}
    for name in names:
        if name in ("since", "until"):
            given[name] = moment_in(query, name)
        elif name in ("principal", "object", "upstream"):
            given[name] = name_pattern(query.text(name, most=2400))
        else:
            given[name] = query.text(name)
    return RecordFilter(**given)


def shown_record(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record with all fields, some of which older records lack, and without arguments: of those that are recorded in
    clear, only the pointers."""
    whole, clear = {**BLANK, **record}, record.get("clear_arguments")
    if isinstance(clear, Mapping):
        whole["clear_arguments"] = sorted(clear)
    whole["limits"] = [{"unit": None, **limit} for limit in whole["limits"] or ()]
    return whole
