"""Stores the tools of an upstream and their schemas, from its own `tools/list`.

No call is sent unvalidated, so a call waits for the list, within its deadline.

    state                    a call of a known tool          a call of an unknown tool
    fresh                    at once                         one refresh, at most one in a second, then tool-unknown
    older than its time      at once; background refresh     waits for that refresh
    changed, or too old      waits for a list begun since    the same
    no list available        upstream-failed, -timeout, -limited or -open

Changes arrive on a stream of the sidecar's own, if the upstream announces them, and on callers' streams (`stale`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.protocols.mcp.messages import LeftOut, named_in, unnamed_in
from sidecar.settings.timestamps import rfc3339
from sidecar.settings.uris import fault_in_uri, normal_uri
from sidecar.upstreams.mcp.listing import OwnConversation
from sidecar.upstreams.mcp.streams import ReopenPauses
from sidecar.upstreams.mcp.tools import Tool, tools_from
from sidecar.upstreams.mcp.transport import McpTransport

# A list may be used this long after its expiry if the upstream does not give a newer one: an outage of tools/list alone
# is no reason to refuse calls, and an old schema still validates. Afterwards calls are refused.
MAX_STALE_S: Final = 600.0
FORCED_EVERY_S: Final = 1.0
RETRY_AFTER_S: Final = 1.0
MAX_LISTEN_PAUSE_S: Final = 300.0
SPELLINGS_EVERY_S: Final = 60.0
MAX_EXPLORE_S: Final = 10.0  # it shares the conversation with the tool list, which must not wait for it
MAX_SPELLINGS: Final = 1_000
MAX_TOLD: Final = 200  # entries of one upstream that are logged
_CLOSING_S: Final = 3.0

log = logging.getLogger("sidecar.upstreams")


class ToolCatalogue:
    """The tools of one upstream. `checks_output`: results are checked against `outputSchema`."""

    def __init__(
        self,
        upstream: McpTransport,
        *,
        refuse_hidden: bool = False,
        checks_output: bool = False,
        clock_mono: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._upstream, self._enquiry = upstream, OwnConversation(upstream)
        self._clock, self._clock_wall = clock_mono, clock
        self._refuse_hidden, self._checks_output = refuse_hidden, checks_output
        self.listed_at: float | None = None  # seconds since the epoch
        self.lists = 0  # the number of lists so far: a watcher for changes compares only this
        self.tools: Mapping[str, Tool] = {}  # the last listed tools by name, including quarantined ones
        self._fresh_until = self._serves_until = self._begun_at = self._forced_at = -inf
        self._changes = 0  # the number of announced changes
        self._covered = -1  # the number of changes that the current list includes
        self._flight: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._failure: Refusal | None = None
        self._failed_at = -inf
        self._offers: dict[str, tuple[str, ...]] = {}
        self._left_out: dict[str, tuple[LeftOut, ...]] = {}
        self._told: set[LeftOut] = set()
        self.spellings = Spellings()
        self._spelled_until = -inf
        self._spelling = asyncio.Lock()

    def known(self, name: str) -> Tool | None:
        """Returns the tool, quarantined or not, if the list may be used without waiting. An old list is refreshed in
        the background."""
        now = self._clock()
        if self._covered < self._changes or now >= self._serves_until:
            return None
        if now >= self._fresh_until:
            self._refresh(now)
        return self.tools.get(name)

    def usable(self, name: str, digest: str | None = None) -> bool:
        """Whether a call of this tool, with this definition's `digest` if given, could be validated by the current
        list. A tool that it lacks is looked for in the background."""
        tool = self.tools.get(name)
        known = tool is not None and digest in (None, tool.definition.digest)
        if not known and self._may_force(self._clock()):
            self._refresh(self._clock())  # a caller's list has a tool that the sidecar's list lacks
        return known and tool is not None and tool.schema is not None

    async def tool(self, name: str, deadline_s: float) -> Tool:
        """Returns the tool, within `deadline_s`. Raises Refusal: TOOL_UNKNOWN, SCHEMA_UNAVAILABLE, or like `learn`."""
        asked_at = self._clock()
        await self.learn(deadline_s)
        tool = self.tools.get(name)
        if tool is None and self._begun_at < asked_at and self._may_force(asked_at):
            await self._landed(self._refresh(asked_at), deadline_s - (self._clock() - asked_at))
            tool = self.tools.get(name)
        if tool is None:
            raise Refusal(Reason.TOOL_UNKNOWN)
        if tool.schema is None:
            raise Refusal(Reason.SCHEMA_UNAVAILABLE, tool.quarantine_reason)
        return tool

    async def learn(self, deadline_s: float) -> None:
        """Waits until there is a usable list that was begun after the last announced change. Raises Refusal:
        UPSTREAM_FAILED, UPSTREAM_TIMEOUT, UPSTREAM_LIMITED, UPSTREAM_OPEN."""
        until, changes = self._clock() + deadline_s, self._changes
        while (now := self._clock()) >= self._serves_until or self._covered < changes:
            if self._failure is not None and now - self._failed_at < RETRY_AFTER_S:
                raise _once_more(self._failure)
            await self._landed(self._refresh(now), until - now)

    @property
    def capabilities(self) -> Mapping[str, Any] | None:
        """The upstream's declared capabilities; None before the first handshake. Untrusted."""
        return self._enquiry.capabilities

    def stale(self) -> None:
        """The upstream announced a change of its list: the current list is not used again."""
        self._changes += 1

    async def probe(self, within_s: float) -> None:
        """Checks that the upstream answers, in the conversation in which its tools are listed. Raises Refusal."""
        await self._enquiry.probe(within_s)

    async def explore(self) -> None:
        """Lists the upstream's prompts and resources, for operators. Raises Refusal."""
        await self.learn(self._upstream.timeout_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_EXPLORE_S):
                async for kind, entries in self._enquiry.offers():
                    self._offers[kind] = named_in(kind, entries)
                    self._left_out[kind] = unnamed_in(kind, entries)
        self.spellings.learn_all(self._offers.get("resources", ()))
        self._tell_of_left_out()

    async def learn_spellings(self, within_s: float) -> None:
        """Lists the resources, once a minute, before a URI that is not in normal form is read, because the upstream may
        use this spelling."""
        async with self._spelling:
            if self._clock() < self._spelled_until:
                return
            self._spelled_until = self._clock() + SPELLINGS_EVERY_S
            with suppress(TimeoutError, Refusal):
                async with asyncio.timeout(min(within_s / 2, MAX_EXPLORE_S)):
                    self.spellings.learn_all(named_in("resources", await self._enquiry.entries("resources")))

    def has(self, kind: str, name: str) -> bool | None:
        """Whether the upstream lists a tool, prompt or resource of this name; None if no list is known. Does no I/O."""
        if kind == "tool":
            return name in self.tools if self.lists else None
        listed = self._offers.get(f"{kind}s")
        if kind == "resource":
            return (listed is not None and name in listed) or None  # a URI may come from a template
        return None if listed is None else name in listed

    def discovered(self) -> Mapping[str, Any]:
        """The upstream's tools, prompts and resources by name, for operators."""
        offers = {kind: list(self._offers.get(kind, ())) for kind in ("prompts", "resources")}
        return {"tools": sorted(self.tools), **offers}

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Entries that no caller can use, with reasons: invalid names, and quarantined tools."""
        tools = self.tools.values()
        quarantined = (LeftOut("tool", tool.name, tool.quarantine_reason) for tool in tools if tool.schema is None)
        return (*quarantined, *chain.from_iterable(self._left_out.values()))

    def _tell_of_left_out(self) -> None:
        """Logs each once, up to a bound."""
        fresh = [one for one in self.left_out if one not in self._told][: max(0, MAX_TOLD - len(self._told))]
        self._told.update(fresh)
        for one in fresh:
            about = {"upstream": self._upstream.name, "kind": one.kind, "entry": one.name, "reason": one.reason}
            log.warning("a server's entry is left out", extra=about)

    def summary(self) -> Mapping[str, Any]:
        """For operators: the number of tools, the quarantined ones with reasons, the revision in use, the last
        failure."""
        greeting = self._enquiry.greeting
        quarantined = {tool.name: tool.quarantine_reason for tool in self.tools.values() if tool.schema is None}
        return {
            "listed_at": None if self.listed_at is None else rfc3339(self.listed_at),
            "tools": len(self.tools),
            "prompts": len(self._offers.get("prompts", ())),
            "resources": len(self._offers.get("resources", ())),
            "server": greeting.server if greeting else None,
            "handshake_latency_ms": round(greeting.took_s * 1000, 3) if greeting else None,
            "quarantined": quarantined,
            "left_out": [one._asdict() for one in self.left_out],
            "protocol_version": self._enquiry.version,
            "failure": None if self._failure is None else self._failure.reason.value,
        }

    async def close(self) -> None:
        tasks = {task for task in (self._flight, self._listener) if task is not None and not task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSING_S)
        await self._enquiry.close()

    def _may_force(self, now: float) -> bool:
        # Calls of unknown names must not keep the upstream busy.
        if now - self._forced_at < FORCED_EVERY_S:
            return False
        self._forced_at = now
        return True

    def _refresh(self, now: float) -> asyncio.Task[None]:
        if self._flight is None or self._flight.done():
            self._fresh_until = now + RETRY_AFTER_S  # if it fails, the next try is not at once
            self._flight = asyncio.create_task(self._learn(self._changes, now), name=f"tools of {self._upstream.name}")
        return self._flight

    async def _landed(self, flight: asyncio.Task[None], timeout_s: float) -> None:
        done, _ = await asyncio.wait({flight}, timeout=max(0.0, timeout_s))
        if not done or flight.cancelled():
            raise Refusal(Reason.UPSTREAM_TIMEOUT, "its list of tools did not arrive in time")
        flight.result()
        if self._failure is not None:
            raise _once_more(self._failure)

    async def _learn(self, changes: int, begun_at: float) -> None:
        try:
            async with asyncio.timeout(self._upstream.timeout_s):
                listing = await self._enquiry.list_tools()
                # Compiling two thousand schemas takes seconds, during which the event loop continues to run.
                tools = await asyncio.to_thread(
                    tools_from,
                    listing.entries,
                    self.tools,
                    refuse_hidden=self._refuse_hidden,
                    checks_output=self._checks_output,
                )
        except TimeoutError:
            self._fail(Refusal(Reason.UPSTREAM_TIMEOUT, "its list of tools did not arrive in time"))
        except Refusal as refusal:
            told = refusal.reason in (Reason.UPSTREAM_TIMEOUT, Reason.UPSTREAM_OPEN, Reason.UPSTREAM_LIMITED)
            self._fail(_once_more(refusal, refusal.reason if told else Reason.UPSTREAM_FAILED))
        else:
            self.tools, self._failure = tools, None
            self._left_out["tools"] = unnamed_in("tools", listing.entries)
            self._tell_of_left_out()
            self.lists += 1
            self.listed_at = self._clock_wall()
            self._covered, self._begun_at = changes, begun_at
            self._fresh_until = begun_at + listing.ttl_s
            self._serves_until = self._fresh_until + MAX_STALE_S
            if self._listener is None and self._enquiry.announces:
                self._listener = asyncio.create_task(self._listen(), name=f"changes of {self._upstream.name}")

    def _fail(self, refusal: Refusal) -> None:
        self._failure, self._failed_at = refusal, self._clock()

    async def _listen(self) -> None:
        """Listens for changes. A stream that ends is reopened, at growing intervals while it ends at once."""
        pauses = ReopenPauses(1.0, MAX_LISTEN_PAUSE_S)
        while True:
            opened_at = self._clock()
            try:
                async for _ in self._enquiry.changes():
                    self.stale()
            except Refusal:
                pass  # no stream: refresh by age until the next try
            self._fresh_until = -inf  # a change may have been missed: the next call refreshes
            await asyncio.sleep(pauses.after(self._clock() - opened_at))


def _once_more(failure: Refusal, reason: Reason | None = None) -> Refusal:
    """Returns a new exception for each waiting call: one that is raised repeatedly grows with each raise."""
    return Refusal(reason or failure.reason, failure.detail, http=failure.http, retry_after_s=failure.retry_after_s)


@dataclass(slots=True)
class Spellings:
    """The spellings of resource URIs in the upstream's own lists, MAX_SPELLINGS at most. Calls are sent in normal form,
    but a server that lists `docs://README` and compares texts would not find `docs://readme`."""

    _by_form: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def learn(self, form: str, written: str) -> None:
        """Records the upstream's first spelling of a normal form. A normal form that it lists later replaces it."""
        if written == form:
            if form in self._by_form:
                self._by_form[form] = form
            return
        self._by_form.setdefault(form, written)
        while len(self._by_form) > MAX_SPELLINGS:
            self._by_form.popitem(last=False)

    def learn_all(self, written: tuple[str, ...]) -> None:
        forms = {uri: normal_uri(uri) for uri in written if not fault_in_uri(uri)}
        for uri in sorted(forms, key=lambda uri: uri == forms[uri]):  # normal forms last, so that they win
            self.learn(forms[uri], uri)

    def spelled(self, form: str) -> str:
        return self._by_form.get(form, form)
