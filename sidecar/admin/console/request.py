"""The request that a page, an action or a stream of the console gets, and helpers for its answer."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import orjson
from aiohttp import web

from sidecar.admin.console.addresses import BASE
from sidecar.admin.console.form_fields import FormFields
from sidecar.admin.operator_api import MAX_OFFSET
from sidecar.admin.routes import OperatorAction, OperatorOrder, Role, carry_out
from sidecar.protocols.jsonrpc import malformed
from sidecar.vocabulary import Principal

if TYPE_CHECKING:
    from sidecar.admin.console.page_process import PageProcess
    from sidecar.admin.console.sessions import ConsoleSession
    from sidecar.admin.other_workers import OtherWorkers

T = TypeVar("T")
MAX_SHARED: Final = 64
PAGE_ROWS, MAX_PAGE_ROWS = 50, 200
OTHERS_S: Final = 2.0
REST_S: Final = 0.001


class ConsoleFault(Exception):
    """A request cannot be answered: `told` says why. `facts` are further members of the problem document."""

    def __init__(self, status: int, told: str, facts: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(told)
        self.status, self.told, self.facts = status, told, facts


class Fragment(NamedTuple):
    """The answer of an action, as a template in templates/ with its data."""

    template: str
    data: Mapping[str, Any]
    status: int = 200


@dataclass(slots=True)
class SharedResults:
    """The last MAX_SHARED results that several viewers wait for or have seen, by key, and parts of pages that live as
    long as the console, by the function that makes them. Work that runs `in_turn` starts one after another, and while
    calls are in progress (`is_busy`) each after a pause. Otherwise ten pages at once would delay a call by the sum of
    their times."""

    is_busy: Callable[[], bool] = lambda: False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _made: OrderedDict[Hashable, tuple[float, asyncio.Task[Any]]] = field(default_factory=OrderedDict)
    _parts: dict[Hashable, Any] = field(default_factory=dict)
    _orders: int = 0

    def forget(self) -> None:
        """Drops all results, also those being made, because an order may have changed what they show."""
        self._orders += 1
        self._made.clear()

    def part(self, make: Callable[..., T], *given: object) -> T:
        """The part that `make` makes, on the first call."""
        if make not in self._parts:
            self._parts[make] = make(*given)
        part: T = self._parts[make]
        return part

    async def get(self, key: Hashable, within_s: float, make: Callable[[], Awaitable[T]]) -> T:
        """The result for a key. It is made again if it is older than `within_s`, failed, or was made before an order
        that ended meanwhile: otherwise a page would show again what its viewer has just changed."""
        while True:
            orders, now_s = self._orders, time.monotonic()
            made_at, task = self._made.pop(key, (0.0, None))
            if task is None or _is_over(task, now_s - made_at >= within_s):
                made_at, task = now_s, asyncio.ensure_future(self.in_turn(make))
                task.add_done_callback(_retrieved)
            self._made[key] = made_at, task
            while len(self._made) > MAX_SHARED:
                self._made.popitem(last=False)
            result: T = await asyncio.shield(task)  # one viewer may leave while others wait
            if orders == self._orders:
                return result

    async def in_turn(self, make: Callable[[], Awaitable[T]]) -> T:
        async with self._turn:
            await asyncio.sleep(REST_S if self.is_busy() else 0)
        return await make()


def _is_over(task: asyncio.Task[Any], is_old: bool) -> bool:
    """Whether a result must be made again: not while it is being made, and always after a failure."""
    return task.done() and (task.cancelled() or task.exception() is not None or is_old)


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Retrieves an error, so that none is logged as unhandled if all viewers have left."""
    if not task.cancelled():
        task.exception()


@dataclass(frozen=True, slots=True)
class ConsoleRequest:
    """One authorized request. `path` is the path below `/console/`; for a stream `<page>/live`, it is that of the page.
    `parts` are the parts of the path by name. `by` is the user, as audit records name it; `person` is the principal, if
    the credential names one. `session` is None for a credential in a header. `is_of_worker`: another worker requests
    the data of this one. `seen` is the digest of the data that the page of a stream shows."""

    app: OperatorAction
    request: web.BaseRequest
    path: str
    parts: Mapping[str, str]
    query: FormFields
    form: FormFields
    role: Role
    by: str
    process: PageProcess
    session: ConsoleSession | None = None
    others: OtherWorkers | None = None
    is_of_worker: bool = False
    seen: str = ""
    results: SharedResults = field(default_factory=lambda: SharedResults())
    person: Principal | None = None

    @property
    def is_operator(self) -> bool:
        return self.role == "operator"

    @property
    def is_htmx(self) -> bool:
        return self.request.headers.get("HX-Request") == "true"

    async def operate(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, object] | None = None
    ) -> Any:
        """Makes a request to the admin API for this user, and returns its answer. The API checks role and input, writes
        the audit record, and includes the other workers. Raises ConsoleFault for an error."""
        raw = orjson.dumps({} if body is None else body)

        async def read_body(max_bytes: int) -> bytes:
            if len(raw) > max_bytes:
                raise malformed(f"at most {max_bytes} bytes")
            return raw

        target = f"{path}?{urlencode(query)}" if query else path
        order = OperatorOrder(method, path, target, read_body)
        response = await self.results.in_turn(
            partial(carry_out, self.app, self.request, order, self.role, self.by, person=self.person)
        )
        if self.others is not None and not self.is_of_worker:
            response = await self.others.complete(method, path, self.by, response)
        if not isinstance(response, web.Response) or not isinstance(response.body, bytes):
            raise TypeError(f"{path} has no whole answer")
        if response.content_type == "text/plain":
            return response.body.decode("utf-8", "replace")
        answer = orjson.loads(response.body)
        if response.status >= 400:
            facts = {name: value for name, value in answer.items() if name not in ("type", "title", "status", "error")}
            raise ConsoleFault(response.status, str(answer.get("error") or answer["title"]), facts)
        return answer

    async def of_others(self, path: str = "") -> Sequence[Mapping[str, Any]]:
        """The data of this page, or of the page `path`, at each other worker that answers in time. Empty for a process
        that serves alone, and for a request of another worker."""
        if self.others is None or self.is_of_worker:
            return []
        query = self.query.with_changes({})
        target = f"{BASE}{path or self.path}" + (f"?{query}" if query else "")
        replies = await self.others.ask_all("GET", target, OTHERS_S, self.by)
        return [reply.plain for reply in replies.values() if reply is not None and reply.status == 200]

    async def shared(self, key: Hashable, within_s: float, make: Callable[[], Awaitable[T]]) -> T:
        """The result of `make`, made once for all viewers within this time. Use it for data that is costly or has many
        viewers, and that every role may see."""
        return await self.results.get((self.is_of_worker, key), within_s, make)

    def is_seen(self, data: Mapping[str, Any]) -> bool:
        """Whether the page of this stream already shows this data."""
        return bool(self.seen) and self.seen == digest_of_view(data)

    def part(self, make: Callable[[OperatorAction, PageProcess], T]) -> T:
        """The part of this console that `make` makes, on the first call."""
        return self.results.part(make, self.app, self.process)

    def is_draining(self) -> bool:
        return self.app.desk.is_draining()


def digest_of_view(data: Mapping[str, Any]) -> str:
    """The digest of the data that a page shows; "" if the data has none, so that a stream sends it again."""
    try:
        raw = orjson.dumps(data, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a text is not valid Unicode, such as the name of a file
        return ""
    return blake2b(raw, digest_size=12).hexdigest()


class Paging(NamedTuple):
    """The rows of a view that are shown, for `ui.pager`: the number of the page, counted from 1, the number of pages
    and of all rows, the index of the first row, and the number of rows on a page."""

    number: int
    pages: int
    total: int
    first: int
    size: int

    @classmethod
    def of(cls, total: int, query: FormFields, *, size: int = PAGE_ROWS) -> Paging:
        """The page of number `page=` in the query, with `rows=` rows on each, but no page after the last one. Raises
        Refusal(MALFORMED_CALL)."""
        size = query.number("rows", size, least=1, most=MAX_PAGE_ROWS)
        pages = max(1, -(-total // size))
        number = min(query.number("page", 1, least=1, most=10_000_000), pages)
        return cls(number, pages, total, (number - 1) * size, size)

    def plain(self) -> Mapping[str, int]:
        return self._asdict()


def paged(rows: Sequence[Any], query: FormFields, *, size: int = PAGE_ROWS) -> Mapping[str, Any]:
    """`rows` of the page that the query names, and its `paging`. Raises Refusal(MALFORMED_CALL)."""
    at = Paging.of(len(rows), query, size=size)
    return {"rows": rows[at.first : at.first + at.size], "paging": at.plain()}


async def fetched(
    query: FormFields, fetch: Callable[[int, int], Awaitable[tuple[Sequence[T], int]]]
) -> tuple[Sequence[T], Paging]:
    """The rows of the page that the query names. `fetch` takes a limit and an offset, and returns rows and the total.
    Raises Refusal(MALFORMED_CALL)."""
    at = Paging.of(MAX_OFFSET, query)
    while True:
        rows, total = await fetch(at.size, at.first)
        known = Paging.of(total, query)
        if known.first >= at.first:
            return rows, known
        at = known  # the requested page is after the last one


def matches(wanted: str, *texts: object) -> bool:
    """Whether one of the texts contains a filter's text, regardless of case. An empty filter matches all."""
    return not wanted or any(wanted.casefold() in str(text).casefold() for text in texts)
