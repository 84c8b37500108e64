"""Who sends programs on errands, over A2A and over the task API, and what were they told?

Seven agents of one program (`errand.py`): told on standard input, by files, over JSON-RPC; with a process for each
conversation, by lines and over JSON-RPC; one that writes; one that a schedule calls. Their callers send and wait, send
and do not wait, listen, leave, cancel, go on with conversations, order over the task API, and run the schedule.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from bench.mixed import Answer, Callers
from sidecar.settings.shipped_files import shipped

PROGRAM = Path(__file__).with_name("errand.py")
TOLD, FILED, ASKED, TALKS, CHATS, WRITES, DUE = "told", "filed", "asked", "talks", "chats", "writes", "due"
ONCE = (TOLD, FILED, ASKED)
CONVERSATIONS = (TALKS, CHATS)
SCHEDULE, SCHEDULED = "hourly", "scheduled"
TOKEN = "LABORATORY"
TIMEOUT_S = 1.2
LASTS_S = (0.0, 0.3)
RESTS_S = 0.2  # who waits for nothing would only fill queues
_MORE = {"A2A-Version": "1.0"}
_DEEDS = ("works",) * 6 + ("fails", "again", "hangs", "stubborn", "leaves")


def write_folder(folder: Path, token: str, place: Path, ports: Mapping[str, int], **more: Any) -> None:
    """Write what `sidecar serve` needs; `token` is in the environment of every program, `place` has what they write."""
    (folder / "policies").mkdir(parents=True, exist_ok=True)
    shutil.copytree(shipped("models"), folder / "models", dirs_exist_ok=True)
    rules = f"p, nhi:*, nhi:*, use, -, -, -, allow\np, nhi:{SCHEDULE}, nhi:{DUE}, use, -, -, -, allow\n"
    (folder / "policies" / "nhi_to_nhi.csv").write_text(rules)
    settings = {
        "version": 1,
        "server": {"listen": "127.0.0.1:0", "shutdown_grace_s": 5},
        "admin": {"listen": f"127.0.0.1:{ports['admin']}"},
        "local": [{"listen": f"127.0.0.1:{ports[who]}", "principal": f"nhi:{who}"} for who in ("owner", "other")],
        "tasks": {"max_per_principal": 1_000_000, "max": 1_000_000, "ask_every_s": 1} | more.pop("tasks", {}),
        "agents": _agents(token, place),
        "schedules": {
            SCHEDULE: {
                "agent": DUE,
                "cron": "@hourly",
                "overlap": "allow",
                "input_parameters": {"prompt": f"{SCHEDULED} works 0.3"},
            }
        },
        **more,
    }
    (folder / "sidecar.yaml").write_text(json.dumps(settings))


def _agents(token: str, place: Path) -> dict[str, Any]:
    def agent(how: str, **more: Any) -> dict[str, Any]:
        envs = {TOKEN: token, "JOURNAL": str(place / "journal")} | more.pop("envs", {})
        return {
            "executable": sys.executable,
            "args": ["-I", "-S", str(PROGRAM), how],
            "envs": envs,
            "timeout": TIMEOUT_S,
            "max_concurrent_executions": 4,
            "keep_runs": 1_000_000,
            "retries": {"max": 1, "backoff_s": 0.4, "exit_codes": [75]},
            **more,
        }

    return {
        TOLD: agent("stdin"),
        FILED: agent("file", agent_type="file-file"),
        ASKED: agent("json-rpc", agent_type="json-rpc"),
        TALKS: agent("lines", mode="interactive"),
        CHATS: agent("json-rpc", agent_type="json-rpc", mode="interactive"),
        WRITES: agent(
            "stdin", access_type="read-write", max_concurrent_executions=1, envs={"LOCK": str(place / "lock")}
        ),
        DUE: agent("stdin"),
    }


def marked(token: str) -> list[psutil.Process]:
    """Every process with this token in its environment, whoever its parent is."""
    found, mark = [], f"{TOKEN}={token}\0".encode()
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                found.append(process)
    return found


@dataclass
class Errand:
    """A run as its caller knows it. `told` is the last state of it that they heard, `is_ordered` that of the task API
    where `run_id` is its task's."""

    run_id: str
    agent: str
    trace: str
    told: str = ""
    context: str = ""
    is_ordered: bool = False


class _Leaves(Exception):
    """A caller has heard enough."""


@dataclass
class Senders:
    """Everybody who calls one sidecar. What they were told of, by run."""

    callers: Callers
    admin: str
    chance: random.Random
    errands: dict[str, Errand] = field(default_factory=dict)
    scheduled: list[str] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)
    busy: Counter[str] = field(default_factory=Counter)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def kinds(self) -> list[Any]:
        """What they do, again and again."""
        return [*(self.send, self.wait, self.listen) * 2, self.leave, self.talk, self.talk, self.order, self.run_due]

    # --- what they do -------------------------------------------------------------------------------------------------

    async def send(self) -> None:
        """Send and wait for nothing; half of what was sent is cancelled a little later."""
        errand = await self._sent(self.chance.choice((*ONCE, WRITES)), self._deed(), at_once=True)
        if errand is not None and self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.uniform(0.0, 0.5))
            await self.cancel(errand)
        await asyncio.sleep(RESTS_S)

    async def cancel(self, errand: Errand) -> None:
        """Give it up, if it is not over."""
        status, said, _ = await self._rpc(errand.agent, "CancelTask", {"id": errand.run_id}, errand.trace)
        if "result" in said:
            errand.told = _state(said["result"])
        elif not self._is_busy(status, said, errand.agent):
            self._expect(said.get("error", {}).get("code") == -32002, f"cancelled: {status} {said}")

    async def wait(self) -> None:
        """Send and wait for the end."""
        await self._sent(self.chance.choice(ONCE), self._deed())

    async def listen(self, leaves: bool = False) -> None:
        """Send and hear what becomes of it."""
        agent = self.chance.choice(ONCE)
        with suppress(_Leaves):
            async with aclosing(self._stream(agent, self._deed())) as told:
                async for errand in told:
                    if leaves and errand.told:
                        raise _Leaves

    async def leave(self) -> None:
        """Listen, and hang up."""
        await self.listen(leaves=True)
        await asyncio.sleep(RESTS_S)

    async def talk(self) -> None:
        """Three turns of a conversation."""
        agent, context = self.chance.choice(CONVERSATIONS), ""
        for _ in range(3):
            deed = self.chance.choice(("works", "works", "works", "leaves", "fails", "hangs"))
            found = await self._sent(agent, deed, context=context)
            if found is None:
                return
            context = found.context

    async def order(self) -> None:
        """Over the task API."""
        agent, trace = self.chance.choice((*ONCE, WRITES)), self._trace()
        order = {"target_agent_id": agent, "task_type": "errand", "input": {"prompt": self._prompt(trace, "works")}}
        status, said = await self._api("POST", "", order, trace)
        if self._taken(status, said, agent):
            self.errands[said["task_id"]] = errand = Errand(said["task_id"], agent, trace, is_ordered=True)
            if self.chance.random() < 0.2:
                status, said = await self._api("POST", f"/{errand.run_id}/cancel", None, trace)
                if not self._is_busy(status, said, agent):
                    self._expect(status in (200, 409), f"a cancelled order: {status} {said}")
        await asyncio.sleep(RESTS_S)

    async def run_due(self) -> None:
        """Out of turn, as the schedule itself."""
        connector = aiohttp.UnixConnector(self.admin)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=20)) as http,
            http.post(f"http://localhost/api/schedules/{SCHEDULE}/run", json={}) as response,
        ):
            said = await response.json(content_type=None)
            if response.status == 201 and said["run_id"]:
                self.scheduled.append(said["run_id"])
            else:
                self.busy[f"{DUE} {response.status} {said.get('code', '')}".strip()] += 1
        await asyncio.sleep(RESTS_S)

    async def works_at_once(self, agent: str) -> bool:
        """Whether a run of it comes to its end, while its caller waits."""
        errand = await self._sent(agent, "works 0")
        return errand is not None and errand.told == "TASK_STATE_COMPLETED"

    async def shown(self, errand: Errand) -> str:
        """Its state as its owner is told; nobody else is told any. "" where the store has no time."""
        if errand.is_ordered:
            status, said = await self._api("GET", f"/{errand.run_id}", None, errand.trace)
            if self._is_busy(status, said, errand.agent):
                return ""
            self._expect(status == 200, f"an order of before: {status} {said}")
            return str(said.get("state", ""))
        asked = {"id": errand.run_id}
        status, said, _ = await self._rpc(errand.agent, "GetTask", asked, errand.trace)
        if not self._is_busy(status, said, errand.agent):
            self._expect("result" in said, f"a task of before: {status} {said}")
        _, theirs, _ = await self._rpc(errand.agent, "GetTask", asked, self._trace(), self.callers.other)
        self._expect("error" in theirs, "somebody else's task is shown")
        return _state(said.get("result", {}))

    # --- how ----------------------------------------------------------------------------------------------------------

    async def _sent(self, agent: str, deed: str, *, at_once: bool = False, context: str = "") -> Errand | None:
        """A message; None where there was no place for it."""
        trace = self._trace()
        params = self._message(trace, deed, context)
        if at_once:
            params["configuration"] = {"returnImmediately": True}
        status, said, _ = await self._rpc(agent, "SendMessage", params, trace)
        if not self._taken(status, said, agent):
            return None
        return self._known(said["result"]["task"], agent, trace)

    def _known(self, task: Mapping[str, Any], agent: str, trace: str) -> Errand:
        return self.errands.setdefault(task["id"], Errand(task["id"], agent, trace, _state(task), task["contextId"]))

    async def _stream(self, agent: str, deed: str) -> AsyncGenerator[Errand]:
        trace = self._trace()
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": self._message(trace, deed)}
        headers = {**_MORE, **_traced(trace), "Accept": "text/event-stream"}
        async with self.callers.sent("POST", self._url(agent), body, headers) as response:
            if response.headers["Content-Type"] != "text/event-stream":
                self._taken(response.status, await response.json(), agent)
                return
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                told = json.loads(line[6:])
                if "result" not in told:
                    self._taken(told["error"].get("code", 0), told, agent)
                    return
                event = told["result"]
                if "task" in event:
                    errand = self._known(event["task"], agent, trace)
                elif "statusUpdate" in event:
                    errand.told = _state(event["statusUpdate"])
                yield errand

    def _deed(self) -> str:
        return self.chance.choice(_DEEDS)

    def _prompt(self, trace: str, deed: str) -> str:
        return f"{trace} {deed}" if " " in deed else f"{trace} {deed} {self.chance.uniform(*LASTS_S):.2f}"

    def _message(self, trace: str, deed: str, context: str = "") -> dict[str, Any]:
        part = {"text": self._prompt(trace, deed)}
        message = {"messageId": f"m-{next(self._numbers)}", "role": "ROLE_USER", "parts": [part]}
        return {"message": message | ({"contextId": context} if context else {})}

    def _taken(self, status: int, said: Mapping[str, Any], agent: str) -> bool:
        """Whether it was let in."""
        if status in (200, 201) and "error" not in said:
            return True
        if not self._is_busy(status, said, agent):
            self.wrong[f"{agent}: {status} {said}"[:300]] += 1
        return False

    def _is_busy(self, status: int, said: Mapping[str, Any], agent: str) -> bool:
        """Whether it was refused because there was no place, or the store had no time: then nothing was begun."""
        if status not in (429, 503):
            return False
        self.busy[f"{agent} {said.get('reason') or _reason(said.get('error', {}))}"] += 1
        return True

    def _expect(self, holds: bool, otherwise: str) -> None:
        self.wrong[otherwise[:300]] += not holds

    async def _rpc(self, agent: str, method: str, params: Mapping[str, Any], trace: str, port: int = 0) -> Answer:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self.callers.sent("POST", self._url(agent, port), body, {**_MORE, **_traced(trace)}) as response:
            return response.status, json.loads(await response.read() or b"null"), dict(response.headers)

    async def _api(self, verb: str, path: str, body: Mapping[str, Any] | None, trace: str) -> tuple[int, Any]:
        url = f"http://127.0.0.1:{self.callers.port}/a2a/tasks{path}"
        async with self.callers.sent(verb, url, body, _traced(trace)) as response:
            return response.status, json.loads(await response.read() or b"null")

    def _url(self, agent: str, port: int = 0) -> str:
        return f"http://127.0.0.1:{port or self.callers.port}/agents/{agent}/"

    def _trace(self) -> str:
        return secrets.token_hex(16)


def _traced(trace: str) -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"}


def _reason(error: Mapping[str, Any]) -> str:
    """What a refusal over A2A is called."""
    return str(next((one["metadata"]["reason"] for one in error.get("data", ()) if "metadata" in one), ""))


def _state(of: Mapping[str, Any]) -> str:
    return str(of.get("status", {}).get("state", ""))
