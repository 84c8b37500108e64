"""What of the documentation is told by the code itself?

    python -m docs.make            writes every generated block, docs/pictures/ and docs/openapi.json anew
    python -m docs.make --check    exits 1 and names what is not current

A block stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`. Everything else is written by people. The
figures of the benchmarks are written by `bench/figures.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from docs.pictures import pictures
from docs.reference_pages import commands, error_codes, http_api
from docs.tables import escaped, table
from sidecar.admin.openapi import document
from sidecar.app.policy_sources import bundle
from sidecar.audit import record, result_store
from sidecar.audit.record import FIELDS, SEED_FIELDS
from sidecar.errors import ANSWERS, CredentialFault
from sidecar.gateway.kill_switch import ledger
from sidecar.observability.metrics import Metrics
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.eras import Era
from sidecar.settings import stored_policy
from sidecar.settings.schema import json_schema
from sidecar.settings.sidecar_file import Settings
from sidecar.storage import peers, sqlite_file
from sidecar.upstreams.mcp import session_store
from tests.peers.clients.table import block as client_tables
from tests.unit.policy.catalogue import errors_page

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
OPENAPI = ROOT / "docs" / "openapi.json"
PICTURES = ROOT / "docs" / "pictures"

_BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)

Schema = Mapping[str, Any]


def written_anew(page: str) -> str:
    """The text of a page with its generated blocks as the code has them now."""
    return _BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}\n{found[3]}", page)


# --- reference/configuration.md ---------------------------------------------------------------------------------------


def settings() -> str:
    """Every setting, section by section."""
    schema = json_schema(Settings, "sidecar.yaml")
    parts: list[str] = []
    for where, section in _sections(schema, schema, ""):
        rows = [_setting(schema, section, key, value) for key, value in section["properties"].items()]
        heading = f"{'###' if '.' in where else '##'} `{where}`" if where else "## Top level"
        parts += [heading, escaped(section["description"]), table(("Key", "Value", "Default", "Description"), rows)]
    return "\n\n".join(parts)


def _sections(root: Schema, section: Schema, where: str) -> Iterator[tuple[str, Schema]]:
    """Each section once, where it is first met, with its dotted name; `[]` is an entry of a list, `<name>` of a map."""
    yield where, section
    for key, value in section["properties"].items():
        for suffix, inner in _inside(root, value):
            yield from _sections(root, inner, f"{where}.{key}{suffix}".lstrip("."))


def _inside(root: Schema, value: Schema) -> Iterator[tuple[str, Schema]]:
    if "$ref" in value:
        yield "", root["$defs"][value["$ref"].rpartition("/")[2]]
    elif "items" in value and "$ref" in value["items"]:
        yield from ((f"[]{suffix}", inner) for suffix, inner in _inside(root, value["items"]))
    elif "patternProperties" in value:
        for inner in value["patternProperties"].values():
            yield from ((f".<name>{suffix}", found) for suffix, found in _inside(root, inner))
    for choice in (*value.get("anyOf", ()), *value.get("oneOf", ())):
        yield from _inside(root, choice)


def _setting(root: Schema, section: Schema, key: str, value: Schema) -> tuple[str, ...]:
    """One row."""
    told = value.get("description") or next((inner["description"] for _, inner in _inside(root, value)), "")
    default = "required" if key in section.get("required", ()) else _default(value)
    return f"`{key}`", _kind(value), default, escaped(" ".join(told.split()))


def _default(value: Schema) -> str:
    default = value.get("default")
    if default in (None, [], {}):
        return "–"
    listed = default if isinstance(default, list) else [default]
    return ", ".join(f"`{entry:g}`" if isinstance(entry, float) else f"`{_word(entry)}`" for entry in listed)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace("\n", "\\n")


def _kind(value: Schema) -> str:
    if "enum" in value:
        return " or ".join(f"`{word}`" for word in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if "$ref" in value or "patternProperties" in value:
        return "section" if "$ref" in value else "sections by name"
    choices = [choice for choice in (*value.get("anyOf", ()), *value.get("oneOf", ())) if choice.get("type") != "null"]
    patterns = " ".join(str(choice.get("pattern", "")) for choice in choices)
    if "ms|" in patterns or "KiB" in patterns:
        return "duration" if "ms|" in patterns else "size"
    if choices:
        return " or ".join(dict.fromkeys(_kind(choice) for choice in choices))
    if value.get("type") == "array":
        return "list of " + _kind(value["items"]).replace("section", "sections").replace(" or ", ", ")
    if value.get("type") == "object":
        return "map"
    if "examples" in value:
        return "address"
    if value.get("minLength") == 1 and "maxLength" not in value:
        return "path"
    return {"integer": "number", "boolean": "true or false"}.get(str(value.get("type")), "text")


# --- reference/reasons.md ---------------------------------------------------------------------------------------------


def answers() -> str:
    """The table of `sidecar.errors`: the answer to each reason, by revision."""
    statuses = ("stateless", "session", "in a session")
    head = ("reason", *statuses, "JSON-RPC code", "`error_code`", "audit status", "message")
    rows = [
        (f"`{r}`", *map(str, (a.http, a.session_http, a.in_session, a.code)), a.seed, f"`{a.status}`", a.message)
        for r, a in ANSWERS.items()
    ]
    return table(head, rows)


# --- audit.md ---------------------------------------------------------------------------------------------------------

MEANINGS: Mapping[str, str] = {
    "v": "version of this format: 2",
    "event": "`decision`, `outcome`, `refusal` or `control`",
    "seq": "place in the chain, from 1 on, without gaps",
    "id": "of this record: a UUID of version 7",
    "timestamp": "RFC 3339, UTC, microseconds",
    "instance": "which process wrote it: host, process id, random part; new at each start",
    "decision_id": "of the request: the same in its `decision` and `outcome`, and told to a refused caller",
    "request_id": "the JSON-RPC id, as the caller chose it",
    "trace_id": "from a well-formed `traceparent`, of an MCP message's `_meta` or of the request's head; with "
    "OpenTelemetry otherwise that of the trace that begins here",
    "run_id": "from `run_id` in the `_meta` of an MCP message, or in the `metadata` of an A2A request or its message, "
    "else `X-Run-Id`: bounded, recorded, never used to decide",
    "thread_id": "likewise, from `thread_id` or `X-Thread-Id`",
    "task_id": "the task that a call to an agent, or an MCP call about a task, named or began; only its caller's own",
    "peer": "the address on the other end of the connection; `local` for a Unix socket",
    "enforcement_point": "the one that [asked for the decision](decisions.md); null for a call through the sidecar",
    "credential": "proven by: kind (`jwt`, `api_key`, `agent_token`, `local`, `certificate`, `asserted`, `anonymous`), "
    "issuer or name, key id",
    "credential_fault": "what was wrong where `reason` is `bad-credential`: "
    + ", ".join(f"`{fault}`" for fault in CredentialFault)
    + " ([identity](identity.md#what-was-wrong-with-a-credential)); never a part of the credential",
    "chain": "the principals, first to last",
    "granted": "the roles and scopes that credentials granted, by place in the chain; null if not known",
    "agent_id": "the last principal",
    "agent_role": "the roles through which the deciding rules matched",
    "protocol": "`mcp`; `http` for plain calls, and for bytes that were no request",
    "protocol_version": "the MCP revision",
    "upstream": "the server that the call went to; null for one to all servers",
    "federation": "at the address of all servers: which were asked, and which did not answer and why; elsewhere null",
    "server": "the server or agent that the call is about (the seed's `tool_name`)",
    "tool": "the tool, prompt or URI, or the skill that an agent is asked for; null for none (the seed's `method`)",
    "method": "the method on the wire, e.g. `tools/call`; of an agent its canonical name, e.g. `message/send`",
    "action": "what policy was asked, e.g. `tools/call`",
    "object": "what it was asked about, e.g. `tool:github/search_code`; a URI's query and fragment are cut off",
    "args_hash": "keyed digest of the arguments",
    "clear_arguments": "arguments that are recorded as they came, by JSON Pointer "
    "([below](#arguments-in-clear)); null where none are chosen",
    "redaction_applied": "whether something was left out: of this record (arguments, a query) or of the answer",
    "redactions": "how much was replaced in the answer by `responses.redact`; null where no rule looked at it",
    "evidence": "the results of this call that are kept: id and SHA-256 of each line ([below](#results-that-are-kept))",
    "status": "`success`, `permission_denied`, `rate_limited` or `error`; null in a `decision`",
    "reason": "why it was refused ([answers](answers.md)); null if it was not",
    "error_message": "the reason's sentence, from a closed set",
    "tool_error": "in an `outcome`: whether the answer that was delivered says that what was asked for failed there "
    "(`isError`, an error of the upstream's, a task that failed or was rejected); what it says is not kept",
    "links": "each question of the chain: kind, action, `allow` or `deny`, the ids of the rules it rests on",
    "facts": "each condition: whose link, SHA-256 of its text, `true`, `false` or `error`, keyed digests of its inputs",
    "approval": "the approval that the call used: its `id`, and the people who gave it (`by`)",
    "limits": "each limit: name, what this call was charged, what remains, the limit itself; the `unit` of a budget",
    "would_deny": "what would have denied it: ids of shadow rules; in shadow mode also of rules, reasons and limits",
    "would_allow": "ids of shadow rules that would have allowed",
    "policy_revision": "digest of the policy that decided",
    "engine": "`casbin` if pycasbin decided a link, `both` if pycasbin and compiled rules had to agree "
    "([who decides](casbin.md#who-decides)); null if compiled rules decided",
    "enforcement": "`enforce`, `shadow`, or `degraded`: limits were counted here alone, while their store was out",
    "http_status": "what was answered; 499 if the caller left before",
    "bytes_in": "size of the request's body",
    "bytes_out": "size of the answer's body",
    "duration_ms": "from the first byte of the request to this record",
    "latency": "milliseconds by stage: auth, parse, policy, arguments, limits, audit, upstream",
    "control": "in a `control` record: what happened, by whom, particulars",
    "key_id": "which key made the keyed digests",
    "prev_hash": "`hash` of the line before; 64 zeros in the first",
    "hash": "SHA-256 of this line up to here",
}


def seed_fields() -> str:
    """The seed's names for fields of an audit record."""
    return table(("the seed's name", "our field"), [(f"`{name}`", f"`{ours}`") for name, ours in SEED_FIELDS.items()])


def fields() -> str:
    """Every field of an audit record, in its order."""
    return table(("field", "what stands there"), [(f"`{name}`", MEANINGS[name]) for name in FIELDS])


# --- reference/metrics.md ---------------------------------------------------------------------------------------------


def metrics() -> str:
    """Every series of ours."""
    rows = [
        (f"`{_series(family.name, family.type)}`", family.type, ", ".join(_labels(family)) or "–", family.documentation)
        for family in Metrics(upstreams=("example",), limits=("example",)).exposition.collect()
    ]
    return table(("series", "type", "labels", "meaning"), rows)


def _series(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def _labels(family: Any) -> tuple[str, ...]:
    return tuple(f"`{name}`" for name in family._labelnames)


# --- reference/mcp.md -------------------------------------------------------------------------------------------------


def methods() -> str:
    """The policy question of each MCP method, and the revisions that have it."""
    rows = []
    for name, method in (*messages.METHODS.items(), *messages.NOTIFICATIONS.items()):
        eras = "all" if method.eras == tuple(Era) else method.eras[0].value
        rows.append((f"`{name}`", eras, _asked(name, session=method.session)))
    rows += [
        (f"`{name}` (from the server)", "all", f"`{name}` on `nhi:<server>`; needs a rule") for name in _ASKED_BACK
    ]
    return table(("method", "revisions", "policy question"), rows)


_ASKED_BACK = sorted(messages.SERVER_REQUESTS)
_QUESTIONS: Mapping[str, str] = {
    "tools/call": "`tools/call` on `tool:<server>/<name>`",
    "prompts/get": "`prompts/get` on `prompt:<server>/<name>`",
    "resources/read": "`resources/read` on `resource:<server>/<uri>`",
    "resources/subscribe": "`resources/read` on `resource:<server>/<uri>`",
    "resources/unsubscribe": "`resources/read` on `resource:<server>/<uri>`",
    "completion/complete": "that of its reference: `prompts/get` or `resources/read`",
    "subscriptions/listen": "any grant on the server, `resources/read` on each URI, the methods of each task",
    **dict.fromkeys(
        ("tasks/get", "tasks/cancel", "tasks/result", "tasks/update"),
        "any grant on the server; then its owner only, and the question of the call that created it",
    ),
    "tasks/list": "any grant on the server; lists the caller's own",
}


def _asked(name: str, *, session: bool) -> str:
    return _QUESTIONS.get(name) or ("any grant on the server" if session else "")


# --- openapi.json -----------------------------------------------------------------------------------------------------


def openapi() -> str:
    """The document of plain HTTP, as `sidecar schema openapi` prints it."""
    return orjson.dumps(document(), option=orjson.OPT_INDENT_2).decode() + "\n"


def deployed(path: str, language: str) -> str:
    """A file of deploy/."""
    return f"```{language}\n{(ROOT / 'deploy' / path).read_text('utf-8')}```"


def formats() -> str:
    """The formats that are written, with their versions, and how another version is handled."""
    rows = (
        ("`sidecar.yaml`, `keys.yaml`, YAML under `policies/`", "`version`", 1, "an error with its position"),
        ("[audit records](audit-record.md)", "`v`", record.VERSION, "every command reads 1"),
        ("stored results", "`v`", result_store.VERSION, "`audit verify --evidence` reads bytes, not members"),
        ("`records.sqlite`", "`user_version`", sqlite_file.VERSION, "refused (D103)"),
        ("`disabled.json`", "`version`", ledger.VERSION, "stops the start (D101); new members are ignored"),
        ("the policy taken from a source", "`v`", stored_policy.VERSION, "refused (S162)"),
        ("policy bundles", "`v`", bundle.VERSION, "refused; the policy in force stays"),
        ("MCP sessions in the store", "`v`", session_store.VERSION, "no session (404): the client starts a new one"),
        ("the policy revision of each replica", "`v`", peers.VERSION, "not counted"),
        ("tasks, runs, schedules, callbacks, owners", "–", "–", "members have names; new ones are ignored"),
        ("limits in the store", "–", "–", "a limit with another definition starts from zero"),
    )
    return table(("what", "version in", "version", "another version"), [tuple(map(str, row)) for row in rows])


BLOCKS: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "http-api": http_api,
    "error-codes": error_codes,
    "answers": answers,
    "fields": fields,
    "seed-fields": seed_fields,
    "metrics": metrics,
    "formats": formats,
    "methods": methods,
    "clients": client_tables,  # docs/reference/client-compatibility.md, from tests/peers/clients/results.json
    "nginx-conf": partial(deployed, "nginx/nginx.conf", "nginx"),
    "nginx-sidecar": partial(deployed, "nginx/sidecar.yaml", "yaml"),
    "envoy-grpc": partial(deployed, "envoy/grpc.yaml", "yaml envoy"),
    "envoy-http": partial(deployed, "envoy/http.yaml", "yaml envoy"),
    "envoy-sidecar": partial(deployed, "envoy/sidecar.yaml", "yaml"),
    "agentgateway": partial(deployed, "agentgateway/config.yaml", "yaml agentgateway"),
    "policy-errors": errors_page,  # docs/reference/policy-errors.md, from tests/golden/policy/catalogue/
}


def main(words: Sequence[str]) -> int:
    check = "--check" in words
    old = {page: page.read_text("utf-8") for page in PAGES}
    drawn = {PICTURES / name: svg for name, svg in pictures().items()}
    new = {**{page: written_anew(text) for page, text in old.items()}, **drawn, OPENAPI: openapi()}
    stale = [page for page, text in new.items() if not page.exists() or page.read_text("utf-8") != text]
    for page in stale:
        if not check:
            page.write_text(new[page], "utf-8")
        sys.stderr.write(f"{page.relative_to(ROOT)}: {'is not current' if check else 'written anew'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
