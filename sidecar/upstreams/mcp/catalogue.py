"""Keeps the tools of an upstream and their schemas.

Learned from its own `tools/list`, kept while it is fresh, and shared by all callers: which of them may use a tool is
policy's question. No call goes out unvalidated, so a call waits for the list, within its deadline.

    state                    a call of a known tool          a call of an unknown tool
    fresh                    at once                         one refresh, at most one in a second, then tool-unknown
    older than its time      at once; refreshed behind it    waits for that refresh
    changed, or too old      waits for a list begun since    the same
    no list to be had        upstream-failed, upstream-timeout

Where the upstream says that it tells of changes, one stream of our own listens for them; elsewhere age must do, and
what callers' own streams bring (`stale`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.protocols.mcp.messages import LeftOut, named_in, unnamed_in
from sidecar.upstreams.mcp.listing import Greeting, OwnConversation
from sidecar.upstreams.mcp.spellings import Spellings
from sidecar.upstreams.mcp.tools import Tool, tools_from
from sidecar.upstreams.mcp.transport import McpTransport

# A list may serve this long beyond its time while the upstream does not give a newer one: an outage of tools/list
# alone is no reason to refuse calls, and an old schema still validates. Then it is.
MAX_STALE_S: Final = 600.0
FORCED_EVERY_S: Final = 1.0
RETRY_AFTER_S: Final = 1.0
MAX_LISTEN_PAUSE_S: Final = 300.0
SPELLINGS_EVERY_S: Final = 60.0
MAX_EXPLORE_S: Final = 10.0  # in the conversation that tools are learned in: they must not wait for what nobody calls
MAX_TOLD: Final = 200  # entries of one upstream that the log names
_CLOSING_S: Final = 3.0

log = logging.getLogger("sidecar.upstreams")


class ToolCatalogue:
    """The tools of one upstream. `checks_output`: whether their `outputSchema` counts. `clock_mono` gives monotonic
    seconds."""

    def __init__(
        self,
        upstream: McpTransport,
        *,
        refuse_hidden: bool = False,
        checks_output: bool = False,
        clock_mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upstream = upstream
        self._refuse_hidden, self._checks_output = refuse_hidden, checks_output
        self.lists = 0  # how many were learned: whoever watches for changes need only look at this
        self._clock = clock_mono
        self._enquiry = OwnConversation(upstream)
        self._tools: Mapping[str, Tool] = {}
        self._fresh_until = self._serves_until = self._begun_at = self._forced_at = -inf
        self._changes = 0  # how often we heard that the list changed
        self._covered = -1  # how many of these the list we have was begun after
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

    @property
    def greeting(self) -> Greeting | None:
        """How our conversation with the upstream began; None before it did."""
        return self._enquiry.greeting

    def known(self, name: str) -> Tool | None:
        """The tool, if its list may be used without waiting; a quarantined one too. No I/O."""
        now = self._clock()
        if not self._serves(self._changes, now):
            return None
        if now >= self._fresh_until:
            self._refresh(now)
        return self._tools.get(name)

    def usable(self, name: str, digest: str | None = None) -> bool:
        """Whether a call of this tool could be validated, as far as the list at hand says: for filtering lists. With a
        `digest`, also whether the tool has that definition."""
        tool = self._tools.get(name)
        known = tool is not None and digest in (None, tool.definition.digest)
        if not known and self._may_force(self._clock()):
            self._refresh(self._clock())  # somebody was shown a tool that we have not heard of
        return known and tool is not None and tool.schema is not None

    @property
    def tools(self) -> Mapping[str, Tool]:
        """What was learned last, by name, quarantined tools too."""
        return self._tools

    async def tool(self, name: str, deadline_s: float) -> Tool:
        """The tool, waiting for its list at most `deadline_s`.

        Raises Refusal: TOOL_UNKNOWN, SCHEMA_UNAVAILABLE, and UPSTREAM_FAILED or UPSTREAM_TIMEOUT without a list.
        """
        asked_at = self._clock()
        await self.learn(deadline_s)
        tool = self._tools.get(name)
        if tool is None and self._begun_at < asked_at and self._may_force(asked_at):
            await self._landed(self._refresh(asked_at), deadline_s - (self._clock() - asked_at))
            tool = self._tools.get(name)
        if tool is None:
            raise Refusal(Reason.TOOL_UNKNOWN)
        if tool.schema is None:
            raise Refusal(Reason.SCHEMA_UNAVAILABLE, tool.quarantine_reason)
        return tool

    async def learn(self, deadline_s: float) -> None:
        """Wait until there is a list that may be used, and that was begun after the last change we heard of."""
        until, changes = self._clock() + deadline_s, self._changes
        while not self._serves(changes, now := self._clock()):
            if self._failure is not None and now - self._failed_at < RETRY_AFTER_S:
                raise _once_more(self._failure)
            await self._landed(self._refresh(now), until - now)

    @property
    def capabilities(self) -> Mapping[str, Any] | None:
        """What the upstream says it can do; None as long as it has not said so to us. Untrusted."""
        return self._enquiry.capabilities

    def stale(self) -> None:
        """The upstream said that its list changed: what we have is not used again."""
        self._changes += 1

    async def probe(self, within_s: float) -> None:
        """Ask the upstream whether it is there, in the conversation that its tools are learned in. Raises Refusal."""
        await self._enquiry.probe(within_s)

    async def explore(self) -> None:
        """Learn what else the upstream offers, for operators to see. Raises Refusal."""
        await self.learn(self._upstream.timeout_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_EXPLORE_S):
                async for kind, entries in self._enquiry.offers():
                    self._offers[kind] = named_in(kind, entries)
                    self._left_out[kind] = unnamed_in(kind, entries)
        self.spellings.learn_all(self._offers.get("resources", ()))
        self._tell_of_left_out()

    async def learn_spellings(self, within_s: float) -> None:
        """Have the upstream's resources listed before a URI that is not in normal form is read: it may be one that the
        upstream writes so. Asked at most once in a minute; without an answer, the normal form goes on."""
        async with self._spelling:
            if self._clock() < self._spelled_until:
                return
            self._spelled_until = self._clock() + SPELLINGS_EVERY_S
            with suppress(TimeoutError, Refusal):
                async with asyncio.timeout(min(within_s / 2, MAX_EXPLORE_S)):
                    self.spellings.learn_all(named_in("resources", await self._enquiry.entries("resources")))

    def has(self, kind: str, name: str) -> bool | None:
        """Whether the upstream lists a tool, prompt or resource of this name; None where no list says. No I/O."""
        if kind == "tool":
            return name in self._tools if self.lists else None
        listed = self._offers.get(f"{kind}s")
        if kind == "resource":
            return (listed is not None and name in listed) or None  # a URI may come of a template
        return None if listed is None else name in listed

    def discovered(self) -> Mapping[str, Any]:
        """For operators: what the upstream has, by name."""
        offers = {kind: list(self._offers.get(kind, ())) for kind in ("prompts", "resources")}
        return {"tools": sorted(self._tools), **offers}

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What no caller can use, and why: entries that no call can name, and quarantined tools."""
        unusable = (tool for tool in self._tools.values() if tool.schema is None)
        quarantined = (LeftOut("tool", tool.name, tool.quarantine_reason) for tool in unusable)
        return (*quarantined, *(one for each in self._left_out.values() for one in each))

    def _tell_of_left_out(self) -> None:
        """In the log, each once, as many as a server has any business to bring."""
        fresh = [one for one in self.left_out if one not in self._told][: max(0, MAX_TOLD - len(self._told))]
        self._told.update(fresh)
        for one in fresh:
            about = {"upstream": self._upstream.name, "kind": one.kind, "entry": one.name, "reason": one.reason}
            log.warning("a server's entry is left out", extra=about)

    def summary(self) -> Mapping[str, Any]:
        """For operators: how many tools, which are quarantined and why, the revision spoken, the last failure."""
        greeting = self._enquiry.greeting
        quarantined = {tool.name: tool.quarantine_reason for tool in self._tools.values() if tool.schema is None}
        return {
            "tools": len(self._tools),
            "prompts": len(self._offers.get("prompts", ())),
            "resources": len(self._offers.get("resources", ())),
            "server": greeting.server if greeting else None,
            "handshake_latency_ms": round(greeting.took_s * 1000, 3) if greeting else None,
            "quarantined": quarantined,
            "left_out": [one.told for one in self.left_out],
            "protocol_version": self._enquiry.version,
            "failure": None if self._failure is None else self._failure.reason.value,
        }

    async def close(self) -> None:
        """Stop learning, and end our own session with the upstream."""
        tasks = {task for task in (self._flight, self._listener) if task is not None and not task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSING_S)
        await self._enquiry.close()

    def _serves(self, changes: int, now: float) -> bool:
        return self._covered >= changes and now < self._serves_until

    def _may_force(self, now: float) -> bool:
        # Names that nobody has may not be used to keep the upstream busy.
        if now - self._forced_at < FORCED_EVERY_S:
            return False
        self._forced_at = now
        return True

    def _refresh(self, now: float) -> asyncio.Task[None]:
        """The enquiry that is under way, or a new one. It belongs to nobody: whoever waits may leave."""
        if self._flight is None or self._flight.done():
            self._fresh_until = now + RETRY_AFTER_S  # should it fail, the next try is not at once
            self._flight = asyncio.create_task(self._learn(self._changes, now), name=f"tools of {self._upstream.name}")
        return self._flight

    async def _landed(self, flight: asyncio.Task[None], timeout_s: float) -> None:
        done, _ = await asyncio.wait({flight}, timeout=max(0.0, timeout_s))
        if not done or flight.cancelled():
            raise Refusal(Reason.UPSTREAM_TIMEOUT, "its list of tools did not come in time")
        flight.result()
        if self._failure is not None:
            raise _once_more(self._failure)

    async def _learn(self, changes: int, begun_at: float) -> None:
        try:
            async with asyncio.timeout(self._upstream.timeout_s):
                listing = await self._enquiry.list_tools()
                # Compiling two thousand schemas is seconds of work; the loop goes on meanwhile.
                tools = await asyncio.to_thread(
                    tools_from,
                    listing.entries,
                    self._tools,
                    refuse_hidden=self._refuse_hidden,
                    checks_output=self._checks_output,
                )
        except TimeoutError:
            self._fail(Refusal(Reason.UPSTREAM_TIMEOUT, "its list of tools did not come in time"))
        except Refusal as refusal:
            told = refusal.reason in (Reason.UPSTREAM_TIMEOUT, Reason.UPSTREAM_OPEN, Reason.UPSTREAM_LIMITED)
            reason = refusal.reason if told else Reason.UPSTREAM_FAILED
            self._fail(Refusal(reason, refusal.detail, http=refusal.http, retry_after_s=refusal.retry_after_s))
        else:
            self._tools, self._failure = tools, None
            self._left_out["tools"] = unnamed_in("tools", listing.entries)
            self._tell_of_left_out()
            self.lists += 1
            self._covered, self._begun_at = changes, begun_at
            self._fresh_until = begun_at + listing.ttl_s
            self._serves_until = self._fresh_until + MAX_STALE_S
            if self._listener is None and self._enquiry.announces:
                self._listener = asyncio.create_task(self._listen(), name=f"changes of {self._upstream.name}")

    def _fail(self, refusal: Refusal) -> None:
        self._failure, self._failed_at = refusal, self._clock()

    async def _listen(self) -> None:
        """Hear of changes as they come. A stream that ends is opened anew, ever less often while it ends at once."""
        pause_s = 1.0
        while True:
            opened_at = self._clock()
            try:
                async for _ in self._enquiry.changes():
                    self.stale()
            except Refusal:
                pass  # no stream, or no longer: age will do until the next try
            pause_s = 1.0 if self._clock() - opened_at > MAX_LISTEN_PAUSE_S else min(pause_s * 2, MAX_LISTEN_PAUSE_S)
            self._fresh_until = -inf  # a change may have gone unheard: the next call looks
            await asyncio.sleep(pause_s)


def _once_more(failure: Refusal) -> Refusal:
    """A new one for each who waits: an exception that is raised by many grows with each."""
    return Refusal(failure.reason, failure.detail, http=failure.http, retry_after_s=failure.retry_after_s)
