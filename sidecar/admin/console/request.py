"""What a page, an action or a stream of the console is given, and what it may answer beside data."""

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
    """A page or an action cannot be answered. `facts` are further members of the problem document."""

    def __init__(self, status: int, told: str, facts: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(told)
        self.status, self.told, self.facts = status, told, facts


class Fragment(NamedTuple):
    """An action's answer as a part of a page: a template under templates/, and its data."""

    template: str
    data: Mapping[str, Any]
    status: int = 200


@dataclass(slots=True)
class SharedResults:
    """Results that several viewers wait for or have seen, by key: the oldest gives way to one too many. And parts of
    pages that live as long as the console, by what makes them. What is done `in_turn` begins one after another, each
    after a rest while calls are in progress (`is_busy`): ten at once would delay a call by the sum of them."""

    is_busy: Callable[[], bool] = lambda: False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _made: OrderedDict[Hashable, tuple[float, asyncio.Task[Any]]] = field(default_factory=OrderedDict)
    _parts: dict[Hashable, Any] = field(default_factory=dict)

    def part(self, make: Callable[..., T], *given: object) -> T:
        if make not in self._parts:
            self._parts[make] = make(*given)
        part: T = self._parts[make]
        return part

    async def get(self, key: Hashable, within_s: float, make: Callable[[], Awaitable[T]]) -> T:
        now_s = time.monotonic()
        made_at, task = self._made.pop(key, (0.0, None))
        if task is None or _is_over(task, now_s - made_at >= within_s):
            made_at, task = now_s, asyncio.ensure_future(self.in_turn(make))
            task.add_done_callback(_retrieved)
        self._made[key] = made_at, task
        while len(self._made) > MAX_SHARED:
            self._made.popitem(last=False)
        result: T = await asyncio.shield(task)  # one viewer may leave while others wait
        return result

    async def in_turn(self, make: Callable[[], Awaitable[T]]) -> T:
        async with self._turn:
            await asyncio.sleep(REST_S if self.is_busy() else 0)
        return await make()


def _is_over(task: asyncio.Task[Any], is_old: bool) -> bool:
    """Whether a result is to be made anew: one at a time, and a failure at once."""
    return task.done() and (task.cancelled() or task.exception() is not None or is_old)


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Takes note of an error, also where every viewer who waited has left."""
    if not task.cancelled():
        task.exception()


@dataclass(frozen=True, slots=True)
class ConsoleRequest:
    """One authorized request. `path` is below `/console/`; that of a stream `<page>/live` is its page's. `parts` are
    those of the path that a `{name}` stands for. `by` is who asks, as audit records name it; `person` is the principal,
    if the credential names one. `session` is None for a credential in a header, and `is_of_worker` says that another
    worker asks for the part of this one. `seen` is the digest of what the page of a stream shows."""

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
        """What the admin API answers to the same order of this person: with its checks of role and input, its audit
        record, and at all workers. Raises ConsoleFault."""
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
        """The data of this page at the other workers that answer in time, each of that worker alone; `path` names the
        page where another one is meant. Empty for a process that serves alone, and where another worker asks."""
        if self.others is None or self.is_of_worker:
            return []
        query = self.query.with_changes({})
        target = f"{BASE}{path or self.path}" + (f"?{query}" if query else "")
        replies = await self.others.ask_all("GET", target, OTHERS_S, self.by)
        return [reply.plain for reply in replies.values() if reply is not None and reply.status == 200]

    async def shared(self, key: Hashable, within_s: float, make: Callable[[], Awaitable[T]]) -> T:
        """What `make` returns, made once for all who ask within this time: for what costs much or is looked at by many,
        and that every role may see."""
        return await self.results.get((self.is_of_worker, key), within_s, make)

    def is_seen(self, data: Mapping[str, Any]) -> bool:
        """Whether the page of this stream shows this data already."""
        return bool(self.seen) and self.seen == digest_of_view(data)

    def part(self, make: Callable[[OperatorAction, PageProcess], T]) -> T:
        """The one part of this console that `make` makes when it is first asked for."""
        return self.results.part(make, self.app, self.process)

    def is_draining(self) -> bool:
        return self.app.desk.is_draining()


def digest_of_view(data: Mapping[str, Any]) -> str:
    """What a page's stream is told of the data that the page shows; "" if it cannot be told, so that it is sent."""
    try:
        raw = orjson.dumps(data, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a text that is no Unicode, as a name of a file may be
        return ""
    return blake2b(raw, digest_size=12).hexdigest()


class Paging(NamedTuple):
    """Which rows of a view are shown, for `ui.pager`: the page's number from 1, of how many pages, and how many rows
    there are in all."""

    number: int
    pages: int
    total: int
    first: int
    size: int

    @classmethod
    def of(cls, total: int, query: FormFields, *, size: int = PAGE_ROWS) -> Paging:
        """The page that `page=` of the query names, with `rows=` on each; behind the last one it is the last. Raises
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
    """The rows of the page that the query names, from a source that knows limit and offset and answers with the total
    too. Raises Refusal(MALFORMED_CALL)."""
    at = Paging.of(MAX_OFFSET, query)
    while True:
        rows, total = await fetch(at.size, at.first)
        known = Paging.of(total, query)
        if known.first >= at.first:
            return rows, known
        at = known  # the page that was asked for is behind the last one


def matches(wanted: str, *texts: object) -> bool:
    """Whether a filter's text stands in one of the texts, in upper or lower case. An empty filter matches all."""
    return not wanted or any(wanted.casefold() in str(text).casefold() for text in texts)
