"""What is asked of an agent behind a sidecar, and what does the agent know of it?

    python -m bench.agency PORT      the agent: A2A 1.0 over JSON-RPC, with streams; its tasks take up to two seconds

Two ways to it: messages (sent, streamed, their tasks asked for and cancelled by who began them, and asked for by
somebody else), and the task API, which hands a task over and follows it. A task's result says which message it was for,
and the agent counts how often each message came: so what was told of an end, and what was sent twice, can be laid side
by side with what the agent knows.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from aiohttp import web

from bench.mixed import Answer, Callers, serve

AGENT = "clerk"
RULES = f"p, nhi:*, nhi:{AGENT}, use, -, -, -, allow\n"
SETTINGS = """\
  clerk: {{a2a: {{url: "http://127.0.0.1:{agent}/", version: "1.0"}}}}
tasks: {{max_per_principal: 100000, max: 1000000, ask_every_s: 1}}
"""
WORKING, DONE, CANCELLED = "TASK_STATE_WORKING", "TASK_STATE_COMPLETED", "TASK_STATE_CANCELED"
OURS = "m-"  # what our messages' ids begin with; those of the task API are its tasks'
ANSWERS_AFTER_S = 0.01
STREAMED_S = 0.15
OVER_WITHIN_S = 90.0
AT_ONCE = 16
_MORE = {"A2A-Version": "1.0"}
_LOST = (-32001, "no such task")
_NOT_CANCELABLE = (-32002, "it is over")
_ENDED_UNSEEN = "The sidecar stopped while the task was being sent"


# --- the agent --------------------------------------------------------------------------------------------------------


@dataclass
class Work:
    """A task of the agent's."""

    message_id: str
    context: str
    over_at: float
    cancelled: bool = False

    @property
    def state(self) -> str:
        if self.cancelled:
            return CANCELLED
        return DONE if time.monotonic() >= self.over_at else WORKING


class Agent:
    """`messages` counts how often each came; `traces` are those of all that reached it."""

    def __init__(self) -> None:
        self.traces: list[str] = []
        self.messages: Counter[str] = Counter()
        self.work: dict[str, Work] = {}
        self._numbers = itertools.count(1)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/seen":
                return web.json_response({"traces": self.traces, "messages": self.messages})
            case "/states":
                return web.json_response({one.message_id: one.state for one in self.work.values()})
        if request.method == "GET":
            return web.json_response({"error": "no card"}, status=404)
        message = json.loads(await request.read())
        if "traceparent" in request.headers:
            self.traces.append(request.headers["traceparent"][3:35])
        if message["method"] == "SendStreamingMessage":
            return await self._stream(request, message)
        said = await self._answer(message["method"], message["params"])
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **said})

    async def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "SendMessage":
            message_id = params["message"]["messageId"]
            name = self._begin(message_id, crc32(message_id.encode()) % 20 / 10)
            await asyncio.sleep(ANSWERS_AFTER_S)
            return {"result": {"task": self._told(name)}}
        work = self.work.get(params["id"])
        if work is None:
            return _error(_LOST)
        if method == "CancelTask":
            if work.state != WORKING:
                return _error(_NOT_CANCELABLE)
            work.cancelled = True
        return {"result": self._told(params["id"])}

    def _begin(self, message_id: str, lasts_s: float) -> str:
        self.messages[message_id] += 1
        name = f"t-{next(self._numbers)}-{secrets.token_hex(8)}"
        self.work[name] = Work(message_id, f"c-{name}", time.monotonic() + lasts_s)
        return name

    def _told(self, name: str) -> dict[str, Any]:
        work = self.work[name]
        told: dict[str, Any] = {"id": name, "contextId": work.context, "status": {"state": work.state}}
        if work.state == DONE:
            told["artifacts"] = [{"artifactId": "a", "parts": [{"text": f"done for {work.message_id}"}]}]
        return told

    async def _stream(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        name = self._begin(message["params"]["message"]["messageId"], STREAMED_S)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        state = ""
        while state != DONE:
            told = self._told(name)
            update = {"taskId": name, "contextId": told["contextId"], "status": told["status"]}
            event = {"statusUpdate": update} if state else {"task": told}
            state = told["status"]["state"]
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": event})
            await stream.write(f"data: {body}\n\n".encode())
            await asyncio.sleep(STREAMED_S / 3)
        return stream


def _error(what: tuple[int, str]) -> dict[str, Any]:
    return {"error": {"code": what[0], "message": what[1]}}


# --- who asks it ------------------------------------------------------------------------------------------------------


@dataclass
class Clients:
    """Those who send messages and those who order tasks. What they were told: tasks of the agent → the message each is
    for, tasks of the task API, and who was told of which end."""

    callers: Callers
    begun: dict[str, str] = field(default_factory=dict)
    ordered: list[str] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)
    unknown_whether_sent: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def kinds(self) -> list[Any]:
        return [self._send, self._stream, self._order]

    async def check(self, task_id: str) -> None:
        """A task of the agent's is its owner's and nobody else's, and its end stays its end."""
        told = _result(await self._rpc("GetTask", {"id": task_id}))
        state = told.get("status", {}).get("state", "")
        self._expect(told.get("id") == task_id, f"owner's message task: {told}")
        self._stays(task_id, state, (DONE, CANCELLED))
        if state == DONE:
            text = told["artifacts"][0]["parts"][0]["text"]
            self._expect(text == f"done for {self.begun[task_id]}", "a message task with another's result")
        other = await self._rpc("GetTask", {"id": task_id}, self.callers.other)
        self._expect("error" in other[1], "somebody else's message task is shown")

    async def check_ordered(self, task_id: str) -> str:
        """The same of one of the task API; its state."""
        status, told, _ = await self._api("GET", f"/{task_id}")
        self._expect(status == 200, f"owner's ordered task: {status}")
        state = str(told.get("state", ""))
        self._stays(task_id, state, ("completed", "failed", "cancelled"))
        if state == "completed":
            text = told["result"]["artifacts"][0]["parts"][0]["text"]
            self._expect(text == f"done for {task_id}", "an ordered task with another's result")
        if state == "failed":
            unknown = str(told.get("error_message", "")).startswith(_ENDED_UNSEEN)
            self._expect(unknown, f"an ordered task failed: {told.get('error_message')}")
        other, _, _ = await self._api("GET", f"/{task_id}", port=self.callers.other)
        self._expect(other == 404, f"somebody else's ordered task: {other}")
        return state

    async def settle(self, states: Mapping[str, str]) -> None:
        """Until all that was ordered is over, and told as the agent has it: `states` by message."""
        turns = iter((*((self._settled, one) for one in self.ordered), *((self._same, one) for one in self.begun)))

        async def work() -> None:
            for does, task_id in turns:
                await does(task_id, states)

        async with asyncio.timeout(OVER_WITHIN_S):
            await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def _settled(self, task_id: str, states: Mapping[str, str]) -> None:
        while (state := await self.check_ordered(task_id)) in ("pending", "running"):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        if state == "failed":
            self.unknown_whether_sent += 1
            return
        should = {DONE: "completed", CANCELLED: "cancelled"}.get(states.get(task_id, ""), "cancelled")
        self._expect(state == should, f"an ordered task is {state}, and at the agent {states.get(task_id)}")

    async def _same(self, task_id: str, states: Mapping[str, str]) -> None:
        await self.check(task_id)
        known = self.ends.get(task_id)
        self._expect(known == states[self.begun[task_id]], f"a message task is {known}, and at the agent not")

    async def _send(self) -> None:
        status, said, _ = await self._rpc("SendMessage", self._message())
        if self._expect(status == 200 and "result" in said, f"a message: {status} {said.get('error')}"):
            told = said["result"]["task"]
            self.begun[told["id"]] = said["message_id"]
            await self.check(told["id"])
            if len(self.begun) % 3 == 0:
                await self._cancel(told["id"])

    async def _cancel(self, task_id: str) -> None:
        told = _result(await self._rpc("CancelTask", {"id": task_id}))
        if told:  # else it was faster
            self._expect(told["status"]["state"] == CANCELLED, "a message task that was cancelled is not")
            await self.check(task_id)

    async def _stream(self) -> None:
        message = self._message()
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message}
        url = self._url(self.callers.port, f"/agents/{AGENT}/")
        headers, state = {**_MORE, "Accept": "text/event-stream"}, ""
        async with self.callers.sent("POST", url, body, headers) as response:
            async for line in response.content:
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])["result"]
                    if "task" in event:
                        self.begun[event["task"]["id"]] = message["message"]["messageId"]
                    state = (event.get("task") or event["statusUpdate"])["status"]["state"]
            self._expect(response.status == 200 and state == DONE, f"a stream: {response.status} {state}")

    async def _order(self) -> None:
        order = {"target_agent_id": AGENT, "task_type": "filing", "input": {"topic": "tides"}}
        status, said, _ = await self._api("POST", "", order)
        if self._expect(status == 201, f"an order: {status} {said}"):
            self.ordered.append(said["task_id"])
            await self.check_ordered(said["task_id"])
            if len(self.ordered) % 3 == 0:
                status, said, _ = await self._api("POST", f"/{said['task_id']}/cancel")
                self._expect(status in (200, 409), f"a cancelled order: {status} {said}")

    # --- how ---

    def _stays(self, task_id: str, state: str, ends: tuple[str, ...]) -> None:
        before = self.ends.get(task_id)
        self._expect(before in (None, state), f"a task went from {before} to {state}")
        if state in ends:
            self.ends[task_id] = state

    def _expect(self, holds: bool, otherwise: str) -> bool:
        self.wrong[otherwise[:200]] += not holds
        return holds

    def _message(self) -> dict[str, Any]:
        message_id = f"{OURS}{next(self._numbers)}-{secrets.token_hex(4)}"
        return {"message": {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": "File this."}]}}

    async def _rpc(self, method: str, params: Mapping[str, Any], port: int = 0) -> Answer:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await self._asked("POST", self._url(port or self.callers.port, f"/agents/{AGENT}/"), body)
        if "message" in params:
            answer[1]["message_id"] = params["message"]["messageId"]
        return answer

    async def _api(self, verb: str, path: str, body: Mapping[str, Any] | None = None, port: int = 0) -> Answer:
        return await self._asked(verb, self._url(port or self.callers.port, f"/a2a/tasks{path}"), body)

    async def _asked(self, verb: str, url: str, body: Mapping[str, Any] | None) -> Answer:
        async with self.callers.sent(verb, url, body, _MORE) as response:
            return response.status, json.loads(await response.read() or b"null"), dict(response.headers)

    def _url(self, port: int, path: str) -> str:
        return f"http://127.0.0.1:{port}{path}"


def _result(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = answer[1].get("result") or {}
    return found


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Agent().handle))
