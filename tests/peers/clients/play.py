"""What does a client do, and what does it hear? One part for all clients that are written in Python.

A script opens its client and calls `run`. Its arguments are the address, a tag of its own, and `whole`, `short`
or `restart`.
Each step is one line on standard output that begins with `@@`; a line with `ask` waits for an answer on standard input.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

STEP_S = 15.0
OnProgress = Callable[[float, float | None], None]


@dataclass(frozen=True)
class Told:
    """A result: what the user or the model reads, and whether it is marked as an error."""

    text: str
    is_error: bool = False


class Client(Protocol):
    """What a script gives: the client's own functions."""

    async def names(self) -> list[str]: ...

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress) -> Told: ...


def say(**members: Any) -> None:
    print("@@" + json.dumps(members), flush=True)


async def ask(what: str) -> str:
    """What the driver answers."""
    say(ask=what)
    return (await asyncio.to_thread(sys.stdin.readline)).strip()


def words_of(error: BaseException) -> str:
    """The error as a program prints it; of a group its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


async def step(name: str, action: Callable[[], Awaitable[Told]]) -> None:
    """One step, and how it came back: `answer`, `marked` (a result marked as an error), `raised` or `hung`."""
    try:
        async with asyncio.timeout(STEP_S):
            told = await action()
        say(step=name, how="marked" if told.is_error else "answer", text=told.text)
    except TimeoutError as error:
        say(step=name, how="hung", text=words_of(error))
    except (Exception, asyncio.CancelledError) as error:
        say(step=name, how="raised", text=words_of(error))


def nothing(progress: float, total: float | None) -> None:
    """For calls whose progress does not matter."""


def reporting(on_progress: OnProgress) -> Callable[[float, float | None, str | None], Awaitable[None]]:
    """What the SDK and its like call with each report."""

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        on_progress(progress, total)

    return heard


class OfSdk:
    """A client that is called as the official SDK's are; `callback` is its name for what hears of progress."""

    def __init__(self, client: Any, callback: str = "progress_callback") -> None:
        self._client, self._callback = client, callback

    async def names(self) -> list[str]:
        listed = await self._client.list_tools()
        return [tool.name for tool in getattr(listed, "tools", listed)]

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress) -> Told:
        result = await self._client.call_tool(tool, arguments, **{self._callback: reporting(on_progress)})
        is_error = result.is_error if hasattr(result, "is_error") else result.isError
        return Told(" ".join(getattr(part, "text", "") for part in result.content), bool(is_error))


def echoing(client: Client, text: str) -> Callable[[], Awaitable[Told]]:
    return lambda: client.call("echo", {"text": text}, nothing)


async def play(client: Client, tag: str, part: str) -> None:
    async def listed() -> Told:
        return Told(", ".join(sorted(await client.names())))

    await step("list", listed)
    await step("allowed", echoing(client, "hello"))
    if part != "restart":
        await _refusals(client)
    if part == "whole":
        await _progress(client, tag)
        await _cancel(client, tag)
        await step("after-cancel", echoing(client, "still here"))
    if part != "short":
        await ask("restart")
        await step("restarted", echoing(client, "again"))
        await step("restarted-2", echoing(client, "again"))


async def _refusals(client: Client) -> None:
    await step("denied", echoing(client, "forbidden"))
    await step("after-denied", echoing(client, "still here"))
    await step("first", lambda: client.call("weather", {"city": "Oslo"}, nothing))
    await step("limited", lambda: client.call("weather", {"city": "Oslo"}, nothing))
    await step("after-limited", echoing(client, "still here"))


async def _progress(client: Client, tag: str) -> None:
    """The tool reports once, and again when the driver lets it go on."""
    heard: list[float] = []
    call = asyncio.ensure_future(client.call("steps", {"gate": tag}, lambda progress, total: heard.append(progress)))
    await ask("reported")

    async def stepped() -> Told:
        await call
        return Told(str(len(heard)))

    await step("progress", stepped)


async def _cancel(client: Client, tag: str) -> None:
    call = asyncio.ensure_future(client.call("slow", {"tag": tag}, nothing))
    await ask("begun")

    async def cancelled() -> Told:
        call.cancel()
        await asyncio.wait([call], timeout=5)
        if not call.done():
            return Told("the call goes on")
        if call.cancelled():
            return Told("the call ended")
        error = call.exception()
        return Told(words_of(error) if error else call.result().text)

    await step("cancel", cancelled)
    await ask("cancelled")


def run(opened: Callable[[str], AbstractAsyncContextManager[Client]]) -> None:
    """Play the part that the command line names."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    url, tag, part = sys.argv[1:4]

    async def played() -> None:
        async with opened(url) as client:
            await play(client, tag, part)

    try:
        asyncio.run(played())
    except BaseException as error:
        say(step="broken", how="raised", text=words_of(error))
