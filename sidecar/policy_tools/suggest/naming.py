"""Names suggested roles, sets and rules.

A name is built from what the members have in common, so that a reviewer need not look them up; else from a number. No
name of the present policy is used, and no role's name contains a slash: such roles are granted by tokens (CONTRACT
1.1).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from hashlib import sha256

from sidecar.policy_tools.suggest.rule_shape import Names, RuleDraft, common_head

SUGGESTED = "suggested"
_MAX_STEM = 48
_MAX_ID = 128  # from the grammar of rule ids; CONTRACT 2.1 has no bound
_MEMBERS = {"nhi": "agents", "user": "users"}
_THINGS = {"tool": "tools", "prompt": "prompts", "resource": "resources", "nhi": "agents"}
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._\-]+")
_BOUNDARIES = "_-./:"


def role_name(members: Names, taken: set[str]) -> str:
    """Return `role:payments-agents` for nhi:payments-ledger and nhi:payments-refunds; else `role:suggested-1`."""
    stem, what = _in_common([name.partition(":")[2] for name in members]), _what(members, _MEMBERS, "principals")
    return _free("role:", _joined(stem, what), taken)


def set_name(objects: Names, subject: str, taken: set[str]) -> str:
    """Return `set:github-get` for tools with that prefix, `set:planner-tools` for one subject's tools of several
    servers.
    """
    rests = [name.partition(":")[2] for name in objects]
    what = _what(objects, _THINGS, "objects")
    servers = {rest.partition("/")[0] for rest in rests}
    stem = _in_common(rests) if len(servers) == 1 or what == "agents" else ""
    if len(servers) == 1 and stem not in map(_slug, servers):
        return _free("set:", stem, taken)  # "github-get" is specific enough
    return _free("set:", _joined(stem or _slug(subject.partition(":")[2]), what), taken)


def rule_id(draft: RuleDraft, subject: str, obj: str, taken: set[str]) -> str:
    """Return `suggested-<subject>-<object>`, with a digest of the rule's content if that is long or not unique."""
    thing = _slug(obj.partition(":")[2].replace("*", "")) or "all"
    who = _slug(subject.partition(":")[2]) or subject
    stem = f"{SUGGESTED}-{who.removeprefix(f'{SUGGESTED}-')}-{thing.removeprefix(f'{who}-')}"
    if len(stem) > _MAX_ID - 9 or stem in taken:
        box = (sorted(draft.subjects), sorted(draft.objects), draft.object, draft.actions)
        said = repr((draft.kind.value, *box, draft.terms[:4]))
        stem = f"{stem[: _MAX_ID - 9]}-{sha256(said.encode()).hexdigest()[:8]}"
    return _keep(stem, taken)


def _in_common(names: Sequence[str]) -> str:
    """Return the common beginning of all names, up to the end of a word."""
    head = common_head(names)
    return _slug(head[: max(head.rfind(mark) for mark in _BOUNDARIES) + 1])


def _joined(stem: str, what: str) -> str:
    """Return `pay-agents` for both pay and pay-agent."""
    singular = f"-{what.removesuffix('s')}"
    return f"{stem.removesuffix(singular)}-{what}" if stem else ""


def _what(names: Collection[str], words: dict[str, str], mixed: str) -> str:
    kinds = {name.partition(":")[0] for name in names}
    return words.get(kinds.pop(), mixed) if len(kinds) == 1 else mixed


def _slug(text: str) -> str:
    return _NOT_IN_AN_ID.sub("-", text)[:_MAX_STEM].strip("._-")


def _free(word: str, stem: str, taken: set[str]) -> str:
    """Return the name, with a number if it is taken."""
    if stem and f"{word}{stem}" not in taken:
        return _keep(f"{word}{stem}", taken)
    stem = stem or SUGGESTED
    number = 2 if stem != SUGGESTED else 1
    while f"{word}{stem}-{number}" in taken:
        number += 1
    return _keep(f"{word}{stem}-{number}", taken)


def _keep(name: str, taken: set[str]) -> str:
    taken.add(name)
    return name
