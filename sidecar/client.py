"""The client for applications that ask a sidecar for decisions and enforce them themselves.

    async with DecisionPoint("https://sidecar.acme.example:9443", key=secret) as decisions:
        if await decisions.decide("user:alice", "tool:github/create_issue", {"repo": "acme/site"}, via="nhi:planner"):
            ...

It uses AuthZEN 1.0. Every failure raises `DecisionUnavailable`: a program that does not catch it does not act.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import aiohttp

TIMEOUT_S: Final = 3.0
MAX_RESPONSE_BYTES: Final = 4 * 2**20
_OK: Final = 200
ACTIONS: Final = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read", "nhi": "message/send"}
"""The action on an object of each kind, unless a question names another one."""


class DecisionUnavailable(Exception):
    """There is no decision: the question is malformed, or the sidecar is unreachable, refuses the request, or does not
    give a valid answer in time. `status` is the HTTP status of its answer, None without one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Limit(NamedTuple):
    """A limit that a permitted call was charged to. `unit` is "" if the limit counts calls. `reset_at` is RFC 3339."""

    name: str
    limit: float
    remaining: float
    unit: str = ""
    reset_at: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one question. It is true if the call is allowed. `reason` is the reason of a denial, `decision_id`
    the id of the decision in audit records. `limits` are those that the call was charged to. `retry_after_s` is the
    time until the limit that denied the call permits it."""

    allowed: bool
    reason: str = ""
    decision_id: str = ""
    limits: tuple[Limit, ...] = ()
    retry_after_s: float | None = None

    def __bool__(self) -> bool:
        return self.allowed


class Question(NamedTuple):
    """Whether `caller` (`user:alice`, `nhi:planner`) may use `object` (`tool:github/create_issue`, `nhi:researcher`)
    with these arguments. `action` "" means the action in `ACTIONS`. `via` is the agent that acts for the caller.
    `charge` charges the call to its limits, if the sidecar leaves this to its callers (`pdp.charges: ask`)."""

    caller: str
    object: str
    arguments: Mapping[str, Any] | None = None
    action: str = ""
    via: str = ""
    charge: bool = False


class DecisionPoint:
    """A sidecar that decides. `url` is that of its admin listener or of `pdp.listen`, or `unix:` and the path of a
    socket; `key` is the secret of an admin credential of the role `pdp`. Set `tls` for private authorities or a client
    certificate. Every request ends within `timeout_s` seconds."""

    def __init__(
        self, url: str, *, key: str = "", timeout_s: float = TIMEOUT_S, tls: ssl.SSLContext | None = None
    ) -> None:
        self._socket = url.removeprefix("unix:") if url.startswith("unix:") else ""
        self._url = "http://localhost" if self._socket else url.rstrip("/")
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._timeout, self._tls = aiohttp.ClientTimeout(total=timeout_s), tls
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def decide(
        self,
        caller: str,
        object: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        action: str = "",
        via: str = "",
        charge: bool = False,
    ) -> Decision:
        """Returns the decision on one `Question`. Raises DecisionUnavailable."""
        asked = _written(Question(caller, object, arguments, action, via, charge))
        return _decision(await self._ask("evaluation", asked))

    async def decide_many(self, questions: Iterable[Question]) -> list[Decision]:
        """Returns the decisions on all questions, in their order, from one request. A question that the sidecar could
        not decide is denied. Raises DecisionUnavailable."""
        asked = [_written(question) for question in questions]
        if not asked:
            return []
        answers = (await self._ask("evaluations", {"evaluations": asked})).get("evaluations")
        if not isinstance(answers, list) or len(answers) != len(asked):
            raise DecisionUnavailable("the answer does not have one decision for each question", _OK)
        return [_decision(answer) for answer in answers]

    async def close(self) -> None:
        """Closes the connections. Later questions raise DecisionUnavailable."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, endpoint: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        try:
            body = json.dumps(asked, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise DecisionUnavailable(f"the arguments are not JSON: {error}") from None
        url = f"{self._url}/access/v1/{endpoint}"
        try:
            async with self._connected().post(
                url, data=body, headers=self._headers, allow_redirects=False, ssl=self._tls or True
            ) as response:
                status, raw = response.status, await _body(response)
        except TimeoutError:
            raise DecisionUnavailable(f"no answer within {self._timeout.total} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise DecisionUnavailable(f"no answer: {error}") from None
        return _answer(status, raw)

    def _connected(self) -> aiohttp.ClientSession:
        if self._closed:
            raise DecisionUnavailable("it is closed")
        if self._session is None:
            connector = aiohttp.UnixConnector(self._socket) if self._socket else None
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self._session


def _written(question: Question) -> dict[str, Any]:
    kind, name = _parts(question.caller, "caller: write user:<id> or nhi:<id>")
    object_kind, object_name = _parts(question.object, "object: write tool:<server>/<tool> or nhi:<name>")
    resource: dict[str, Any] = {"type": object_kind, "id": object_name}
    if question.arguments is not None:
        resource["properties"] = {"arguments": question.arguments}
    context: dict[str, Any] = {"charge": True} if question.charge else {}
    if question.via:
        via_kind, context["agent"] = _parts(question.via, "agent: write nhi:<id>")
        if via_kind != "nhi":
            raise DecisionUnavailable(f"{question.via!r} is not an agent: write nhi:<id>")
    action = question.action or ACTIONS.get(object_kind, "")
    return {
        "subject": {"type": kind, "id": name},
        "action": {"name": action},
        "resource": resource,
        **({"context": context} if context else {}),
    }


def _parts(name: str, hint: str) -> tuple[str, str]:
    kind, _, rest = name.partition(":")
    if not kind or not rest:
        article = "an" if hint[0] in "aeiou" else "a"
        raise DecisionUnavailable(f"{name!r} is not {article} {hint}")
    return kind, rest


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise DecisionUnavailable(f"the answer has more than {MAX_RESPONSE_BYTES} bytes", response.status)
    return bytes(body)


def _answer(status: int, raw: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        answer = None
    if status != _OK:
        raise DecisionUnavailable(f"the sidecar answered HTTP {status}{_why(answer)}", status)
    if not isinstance(answer, dict):
        raise DecisionUnavailable("the answer is not a JSON object", status)
    return answer


def _why(answer: object) -> str:
    """Returns what an error says, from a problem document's `error` or a decision's context, as `: …`; "" if
    nothing."""
    told = answer.get("error") if isinstance(answer, dict) else None
    if told is None and isinstance(answer, dict) and isinstance(answer.get("context"), dict):
        error = answer["context"].get("error")
        told = error.get("message") if isinstance(error, dict) else None
    return f": {told}" if isinstance(told, str) else ""


def _decision(answer: object) -> Decision:
    if not isinstance(answer, dict) or not isinstance(answer.get("decision"), bool):
        raise DecisionUnavailable("the answer has no decision", _OK)
    context = answer.get("context")
    facts: Mapping[str, Any] = context if isinstance(context, dict) else {}
    retry_after_s = facts.get("retry_after_s")
    return Decision(
        answer["decision"],
        str(facts.get("reason", "")),
        str(facts.get("decision_id", "")),
        tuple(_limits(facts.get("obligations"))),
        retry_after_s if isinstance(retry_after_s, int | float) else None,
    )


def _limits(obligations: object) -> Iterator[Limit]:
    for one in obligations if isinstance(obligations, list) else ():
        if isinstance(one, dict) and one.get("type") == "limit" and isinstance(about := one.get("properties"), dict):
            unit, reset_at = about.get("unit", ""), about.get("reset_at")
            yield Limit(str(one.get("id", "")), about.get("limit", 0), about.get("remaining", 0), unit, reset_at)
