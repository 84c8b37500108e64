"""Generates the parts of the documentation that come from the code.

    python -m docs.make            writes every generated block, docs/pictures/ and docs/openapi.json
    python -m docs.make --check    names what is not current, and exits with 1

A block is between `<!-- generated: NAME -->` and `<!-- end: NAME -->`. Everything else is written by hand.
`bench/figures.py` writes the figures of the benchmarks.
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
    """The text of a page with its generated blocks updated from the code."""
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
    """The table of `sidecar.errors`: the answer to each reason, and the categories of reasons."""
    rows = [
        (f"`{r}`", a.message, _statuses(a.http, a.session_http, a.in_session), str(a.code)) for r, a in ANSWERS.items()
    ]
    categories: dict[tuple[str, str], list[str]] = {}
    for reason, answer in ANSWERS.items():
        categories.setdefault((answer.seed, f"`{answer.status}`"), []).append(f"`{reason}`")
    grouped = [(*category, ", ".join(reasons)) for category, reasons in categories.items()]
    answered = table(("reason", "message", "HTTP", "JSON-RPC code"), rows)
    return f"{answered}\n\n{table(('`error_code`', 'audit status', 'reasons'), grouped)}"


def _statuses(*statuses: int) -> str:
    return str(statuses[0]) if len(set(statuses)) == 1 else ", ".join(map(str, statuses))


# --- reference/audit-record.md ----------------------------------------------------------------------------------------

MEANINGS: Mapping[str, str] = {
    "v": "version of this format: 2",
    "event": "`decision`, `outcome`, `refusal` or `control`",
    "seq": "place in the record chain: 1, 2, 3 …",
    "id": "id of the record, a UUID of version 7",
    "timestamp": "time of the record: RFC 3339, UTC, with microseconds",
    "instance": "the process that wrote the record: host, process id and a random part, new at each start",
    "decision_id": "id of the request, the same in its `decision` and `outcome`; also sent to a caller that is refused",
    "request_id": "JSON-RPC id of the request, as chosen by the caller",
    "trace_id": "trace id from a valid `traceparent`, in the `_meta` of an MCP message or in a header; without one, "
    "the trace that the sidecar began, if OpenTelemetry is configured",
    "run_id": "`run_id` in the `_meta` of an MCP message or in the `metadata` of an A2A request or message; "
    "otherwise the header `X-Run-Id`. Never used to decide",
    "thread_id": "the same for `thread_id` and `X-Thread-Id`",
    "task_id": "the task that the call names or created, if it belongs to the caller",
    "peer": "address of the connection; `local` for a Unix socket",
    "enforcement_point": "the [enforcement point](../glossary.md#enforcement-point) that requested the decision; "
    "null for a call through the sidecar",
    "credential": "the credentials: kind (`jwt`, `api_key`, `agent_token`, `local`, `certificate`, `schedule`, "
    "`asserted` or `anonymous`), issuer or name, and key id",
    "credential_fault": "if `reason` is `bad-credential`, the fault: "
    + ", ".join(f"`{fault}`" for fault in CredentialFault),
    "chain": "the principals, first to last",
    "granted": "roles and scopes granted by credentials, by place in the chain; null if unknown",
    "agent_id": "the last principal of the chain",
    "agent_role": "the roles through which the deciding rules matched",
    "protocol": "protocol of the request: `mcp`, `a2a`, `authzen` and others; `http` for plain calls and for data "
    "that is not a valid request",
    "protocol_version": "version of the protocol, for MCP its revision",
    "upstream": "the upstream that received the call; null if it went to none, or to several",
    "federation": "at the [aggregate address](../glossary.md#aggregate-address): the servers that were queried, and "
    "those that did not answer, with the reason; otherwise null",
    "server": "the server or agent that the call is about",
    "tool": "the tool, prompt, URI or skill that the call is about; null if there is none",
    "method": "method of the protocol, such as `tools/call`; for A2A its canonical name, such as `message/send`",
    "action": "the action in the question to policy, such as `tools/call`",
    "object": "the object in the question to policy, such as `tool:github/search_code`, without the query and "
    "fragment of a URI",
    "args_hash": "[keyed digest of the arguments](#args_hash)",
    "clear_arguments": "[arguments recorded in clear](#arguments-in-clear), by JSON Pointer; null if none are "
    "configured",
    "redaction_applied": "whether something was left out of this record (arguments, a query) or removed from the "
    "answer",
    "redactions": "number of replacements in the answer by `responses.redact`; null if no rule applied",
    "evidence": "[stored results](#stored-results) of this call: id and SHA-256 of each line",
    "status": "`success`, `permission_denied`, `rate_limited` or `error`; null in a `decision`",
    "reason": "the [reason](reasons.md) of a refusal; null if the call was not refused",
    "error_message": "the sentence that belongs to the reason",
    "tool_error": "in an `outcome`: whether the delivered answer reports that the operation failed (`isError`, an "
    "error of the upstream, a task that failed or was rejected). The content of the error is not recorded",
    "links": "the questions for each link of the chain: kind, action, `allow` or `deny`, and the ids of the deciding "
    "rules",
    "facts": "each condition that was evaluated: its link, SHA-256 of its text, result (`true`, `false` or `error`), "
    "and keyed digests of its inputs",
    "approval": "the approval that the call used: its `id`, and the people who gave it (`by`)",
    "limits": "each limit: name, amount charged, amount left, the limit itself, and the `unit` of a budget",
    "would_deny": "ids of shadow rules that would have denied the call; in shadow mode also rules, reasons and "
    "limits that would have",
    "would_allow": "ids of shadow rules that would have allowed the call",
    "policy_revision": "digest of the policy that decided",
    "engine": "`casbin` if pycasbin decided a link, `both` if pycasbin and the compiled rules had to agree, null if "
    "the compiled rules decided ([Casbin](../explanation/casbin.md))",
    "enforcement": "`enforce`, `shadow`, or `degraded` (limits were counted locally because the store was unavailable)",
    "http_status": "HTTP status of the answer; 499 if the caller disconnected before it",
    "bytes_in": "size of the request body",
    "bytes_out": "size of the answer's body",
    "duration_ms": "time from the first byte of the request to this record",
    "latency": "milliseconds by stage: auth, parse, policy, arguments, limits, audit, upstream",
    "control": "in a `control` record: `what` happened, `by` whom, and details",
    "key_id": "id of the audit key that made the keyed digests",
    "prev_hash": "`hash` of the previous record; 64 zeros in the first one",
    "hash": "SHA-256 of this line up to here",
}


def seed_fields() -> str:
    """The names of the original data models for fields of an audit record."""
    return table(("AuditLog", "audit record"), [(f"`{name}`", f"`{ours}`") for name, ours in SEED_FIELDS.items()])


def fields() -> str:
    """Every field of an audit record, in its order."""
    return table(("field", "meaning"), [(f"`{name}`", MEANINGS[name]) for name in FIELDS])


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
        sys.stderr.write(f"{page.relative_to(ROOT)}: {'is not current' if check else 'updated'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
