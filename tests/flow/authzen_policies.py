"""Random policies, and searches under them compared with the evaluation of every name there is.

python -m tests.flow.authzen_policies [policies]     1,000 by default; prints what was compared
"""

import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sidecar.admin.authzen import AuthzenEndpoint
from sidecar.admin.decisions import decisions_from
from sidecar.gateway.decisions.authzen_messages import Evaluation, Evaluations, SearchRequest
from sidecar.gateway.decisions.point import AskedRequest
from sidecar.policy import Engine
from sidecar.policy.source import load_policy
from tests.flow.authzen import authzen_world
from tests.flow.enforcement import NAME
from tests.flow.world import World

PDP = """{authzen: {
  types: {record: "tool:records/*", letter: "tool:letters/{action}/*", note: "resource:notes/note:*",
    member: "user:corp/*"},
  actions: {can_read: resources/read, can_call: tools/call},
  arguments: {record: {status: resource.properties.status}}}}"""
USERS = ("a", "b", "abc", "corp/a", "corp/b", "nobody")
NHIS = ("p", "q", "nothing")
IDS = ("1", "2", "12", "a/b", "fresh")
ACTIONS = ("read", "write", "can_read", "can_call", "tools/call", "resources/read", "delegate", "message/send")
TYPED: Mapping[str, tuple[str, ...]] = {
    "user": USERS,
    "identity": USERS,
    "member": ("a", "b"),
    "nhi": NHIS,
    "agent": NHIS,
    "record": IDS,
    "letter": IDS,
    "note": IDS,
    "mcp_server": ("github", "nowhere"),
    "unknown": IDS,
    "tool": ("github/get_file", "github/search_code", "github/ghost", "records/1", "records/fresh"),
}
SUBJECT_TYPES, RESOURCE_TYPES = ("user", "user", "member", "nhi", "nhi", "unknown"), (*TYPED, *("record", "letter") * 8)
SUBJECTS = (
    *("user:a", "user:b", "user:abc", "user:a*", "user:*", "*", "role:r", "role:s", "user:corp/a", "user:corp/*"),
    *("nhi:p", "nhi:q", "nhi:*"),
)
OBJECTS = (
    *(
        "tool:records/1",
        "tool:records/2",
        "tool:records/1*",
        "tool:records/*",
        "tool:*",
        "set:x",
        "tool:letters/read/1",
    ),
    *("tool:letters/write/a/b", "tool:letters/read/*", "tool:letters/*", "resource:notes/note:1", "resource:notes/*"),
    *("resource:*", "nhi:github", "nhi:*", "tool:github/get_file", "tool:github/search_code", "tool:github/*"),
    *("tool:github/ghost", "*", "tool:*/1"),
)
ENDS = ("-", "-", "-", "2099-01-01T00:00:00Z", "2001-01-01T00:00:00Z")
WHEN = ("-", "-", "-", "-", "args.status == 'open'", "has(args.status)", "origin.id == 'a'")


def files_of(draw: random.Random) -> Mapping[str, str]:
    """The files of a random policy."""
    rows = [f"p, {_row(draw, SUBJECTS, OBJECTS)}" for _ in range(draw.randint(4, 30))]
    users = [f"p, {_row(draw, SUBJECTS[:10], ('nhi:p', 'nhi:q', 'nhi:*'))}" for _ in range(draw.randint(0, 8))]
    nhis = [f"p, {_row(draw, SUBJECTS[10:], ('nhi:p', 'nhi:q'))}" for _ in range(draw.randint(0, 2))]
    roles = [
        f"g, {member}, {role}"
        for member, role in (("user:a", "role:r"), ("user:b", "role:s"), ("role:s", "role:r"), ("nhi:p", "role:r"))
        if draw.random() < 0.4
    ]
    sets = [
        f"g2, {member}, set:x"
        for member in ("tool:records/2", "tool:records/12", "resource:notes/note:2", "tool:letters/read/2")
        if draw.random() < 0.4
    ]
    guards = [f"p, {_row(draw, SUBJECTS, OBJECTS, 'deny')}" for _ in range(draw.choice((0, 0, 1)))]
    return {
        "agent_to_tool.csv": _text(rows, draw),
        "user_to_nhi.csv": _text(users),
        "nhi_to_nhi.csv": _text(nhis),
        "guardrails.csv": _text(guards),
        "roles.csv": _text([*roles, *sets]),
    }


def _text(rows: list[str], approving: random.Random | None = None) -> str:
    """A file of these rows, without those that differ only in their expiry or not at all. Some of those that are about
    nothing with a schema demand an approval, which is asked after the arguments."""
    distinct = {row.replace(ENDS[3], "-").replace(ENDS[4], "-"): row for row in rows}
    text = ""
    for row in distinct.values():
        asks = row.endswith("allow") and any(f"{word}s/" in row for word in ("record", "letter", "note"))
        note = asks and approving is not None and approving.random() < 0.5
        text += f"#: approval=role:r\n{row}\n" if note else f"{row}\n"
    return text


def _row(draw: random.Random, subjects: Any, objects: Any, effect: str = "") -> str:
    effect = effect or draw.choice(("allow",) * 9 + ("deny",))
    action = draw.choice(("use", "use", "tools/call", "resources/read", "delegate|message/send", "*"))
    subject, object_ = draw.choice(subjects), draw.choice(objects if draw.random() < 0.5 else objects[:9])
    end = draw.choice(ENDS) if effect == "allow" else "-"
    return f"{subject}, {object_}, {action}, {end}, -, {draw.choice(WHEN)}, {effect}"


def searches_of(draw: random.Random) -> Iterator[SearchRequest]:
    """A search of each kind."""
    for searched in ("subject", "resource", "action"):
        subject_type, type_ = draw.choice(SUBJECT_TYPES), draw.choice(RESOURCE_TYPES)
        subject = {"type": subject_type, "id": draw.choice(TYPED[subject_type])}
        properties = draw.choice(({}, {"status": "open"}, {"status": "closed"}))
        resource = {"type": type_, "id": draw.choice(TYPED[type_]), "properties": properties}
        context = draw.choice(({}, {}, {}, {}, {"agent": draw.choice(NHIS)}))
        evaluation = Evaluation(subject, {"name": draw.choice(ACTIONS)}, resource, context)
        yield SearchRequest(searched, evaluation, "", draw.choice((None, 1, 2)))  # type: ignore[arg-type]


class Comparison:
    """Compares the searches of one running sidecar with evaluations."""

    def __init__(self, running: World) -> None:
        self.running, self.counts = running, Counter[str]()
        decisions = decisions_from(running.app.pipeline, running.app.settings, dict)
        endpoint = decisions.protocols[0]
        assert isinstance(endpoint, AuthzenEndpoint)
        self.endpoint, self.live = endpoint, running.app.live

    async def under(self, folder: Path, seed: int) -> None:
        draw = random.Random(seed)
        files = files_of(draw)
        for name, content in files.items():
            (folder / name).write_text(content)
        policy = load_policy(self.running.folder / "models", folder)
        before = self.live.current
        self.live.current = replace(before, engine=Engine(policy))
        try:
            for search in searches_of(draw):
                await self._compare(search, "".join(files.values()), seed)
        finally:
            self.live.current = before

    async def _compare(self, search: SearchRequest, texts: str, seed: int) -> None:
        found, complete = await self._found(search)
        told = f"seed {seed}: {search}, found {found}, complete {complete}, under\n{texts}"
        kind, asked = search.searched, search.evaluation
        names = self.endpoint.vocabulary(self.live.current, "")
        known = (*ACTIONS, "fresh") if kind == "action" else TYPED[getattr(asked, kind)["type"]]
        for name in sorted({*known, *found}):
            entity = {"name": name} if kind == "action" else {**getattr(asked, kind), "id": name}
            question = asked._replace(**{kind: entity})
            decision = (await self._evaluated(question)).decision
            allowed = decision["decision"] or decision["context"]["reason"] == "bad-arguments"
            if name in found:
                assert allowed, f"{name} is listed and denied: {told}"
                continue
            held = {names.principal(entity["type"], name) or ""} if kind == "subject" else set[str]()
            if kind == "resource" and (template := names.resources.get(entity["type"])) is not None:
                held = {template.name(name, asked.action["name"]) or ""}
            is_candidate = kind == "action" or any(one and one in _words(texts) for one in held)
            if complete or (is_candidate and kind != "action"):
                assert not allowed, f"{name} is allowed and not listed: {told}"
        self.counts[kind] += 1
        self.counts["found"] += len(found)
        self.counts["complete"] += complete

    async def _found(self, search: SearchRequest) -> tuple[list[str], bool]:
        names, found = self.endpoint.vocabulary(self.live.current, ""), list[str]()
        while True:
            http = AskedRequest("POST", f"/access/v1/search/{search.searched}")
            status, told = await self.endpoint.search.answer(search, names, http, NAME, None)
            assert status == 200
            assert len(told["results"]) == told["page"]["count"] <= (search.limit or 100)
            found += [one["name" if search.searched == "action" else "id"] for one in told["results"]]
            if not (token := told["page"]["next_token"]):
                assert len(set(found)) == len(found)
                return found, told["context"]["complete"]
            search = search._replace(token=token)

    async def _evaluated(self, asked: Evaluation) -> Any:
        names, http = self.endpoint.vocabulary(self.live.current, ""), AskedRequest("POST", "/access/v1/evaluation")
        (outcome,) = await self.endpoint.asking.evaluate_all(Evaluations([asked]), names, http, NAME, None)
        return outcome


def _words(texts: str) -> set[str]:
    return {field.strip() for line in texts.splitlines() for field in line.split(",")}


async def compare(folder: Path, seeds: range) -> Counter[str]:
    """Compares under one policy for each seed. Returns how many searches of each kind, how much they found, and how
    many were complete."""
    async with authzen_world(folder / "world", PDP) as running:
        await running.app.live.current.services["github"].catalogue.learn(30)
        policies = folder / "random"
        policies.mkdir()
        comparison = Comparison(running)
        for seed in seeds:
            await comparison.under(policies, seed)
        return comparison.counts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print(dict(asyncio.run(compare(Path(temporary), range(int((sys.argv[1:] or ["1000"])[0]))))))
