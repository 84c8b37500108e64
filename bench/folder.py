"""With what is the sidecar configured that is measured?

Everything on: a JWT (ES256, keys from a file), a hundred rows of which six match and one asks a condition, a limit of
each sort that counts every call and refuses none (a row's hour, a tool's rate and concurrency, a caller's hour), the
tool's schema, strict audit.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.call import SERVER, TOOL
from sidecar.http.signing_keys import claims_for, generate
from sidecar.settings.shipped_files import shipped

ISSUER = "https://issuer.bench.example"
CALLER = "nhi:bench"
ROWS = 100
TOKEN_LIFETIME_S = 3600

HEAD = """\
version: 1
data: data
server: {{listen: "127.0.0.1:{data_port}"}}
admin: {{listen: "127.0.0.1:{admin_port}"}}
identity:
  issuers:
    - issuer: {issuer}
      jwks_path: jwks.json
      algorithms: [ES256]
      kinds: [user, nhi]
      audiences: ["{audience}"]
"""
"""How the settings of every sidecar that is measured begin."""
_SETTINGS = """\
store: {{url: "{store_url}"}}
audit: {{sink: file, durability: {durability}}}
upstreams:
  {server}: {{mcp: {{url: "{upstream_url}"}}}}
"""
_MATCHING = f"""\
#: id=bench-searches-acme
p, {CALLER}, tool:{SERVER}/{TOOL}, tools/call, -, 900000000, args.repo.startsWith('acme/') && args.limit <= 50, allow
#: id=bench-uses-search
p, {CALLER}, tool:{SERVER}/search_*, use, 2099-01-01T00:00:00Z, -, -, allow
#: id=engineers-search
p, role:engineers, tool:{SERVER}/search_*, use, -, -, -, allow
#: id=everybody-reads
p, role:everybody, set:search, tools/call, -, -, -, allow
#: id=bench-sees-the-server
p, {CALLER}, tool:{SERVER}/*, use, -, -, -, allow
#: id=everybody-at-all
p, nhi:*, tool:{SERVER}/search_c*, tools/call, -, -, -, allow
"""
_ROLES = f"""\
g, {CALLER}, role:engineers
g, role:engineers, role:everybody
g2, tool:{SERVER}/{TOOL}, set:search
"""
_GUARDRAILS = """\
p, *, tool:*/delete_*, tools/call, -, -, -, deny
"""
_BUDGETS = f"""\
version: 1
tools:
  "tool:{SERVER}/*": {{requests_per_second: 10000, burst: 100000, concurrency: 1000, timeout: 30s}}
principals:
  {CALLER}: {{per_hour: 900000000}}
"""


@dataclass(frozen=True, slots=True)
class Folder:
    """A sidecar's folder, and the token that its caller shows."""

    config: Path
    url: str
    ready_url: str
    metrics_url: str
    token: str


def write_folder(
    folder: Path, *, data_port: int, admin_port: int, upstream_url: str, store_url: str, durability: str = "strict"
) -> Folder:
    """Write what `sidecar serve` needs."""
    url = f"http://127.0.0.1:{data_port}/mcp/{SERVER}"
    key = generate("ES256")
    claims = claims_for(ISSUER, CALLER, (url,), now=time.time(), ttl_s=TOKEN_LIFETIME_S)
    config = (HEAD + _SETTINGS).format(
        data_port=data_port,
        admin_port=admin_port,
        issuer=ISSUER,
        audience=url,
        store_url=store_url,
        durability=durability,
        server=SERVER,
        upstream_url=upstream_url,
    )
    files = {
        "sidecar.yaml": config,
        "jwks.json": key.jwks(),
        "policies/agent_to_tool.csv": _MATCHING + _others(ROWS - _MATCHING.count("\np, ") - 1),
        "policies/roles.csv": _ROLES,
        "policies/guardrails.csv": _GUARDRAILS,
        "policies/budgets.yaml": _BUDGETS,
    }
    (folder / "policies").mkdir(parents=True)
    shutil.copytree(shipped("models"), folder / "models")
    for name, content in files.items():
        (folder / name).write_text(content, "utf-8")
    admin = f"http://127.0.0.1:{admin_port}"
    return Folder(folder / "sidecar.yaml", url, f"{admin}/readyz", f"{admin}/metrics", key.sign(claims))


def environment() -> Mapping[str, str]:
    """Ours, without settings that would reach into the measured sidecar."""
    return {name: value for name, value in os.environ.items() if "__" not in name}


def _others(count: int) -> str:
    """Rows of other people and other tools, as a platform's policy is full of them; every fifth denies."""
    rows = []
    for number in range(count):
        effect = "deny" if number % 5 == 4 else "allow"
        limit = "-" if effect == "deny" else str(100 + number)
        condition = "-" if number % 3 else f"args.project == 'p{number}'"
        rows.append(
            f"p, nhi:agent-{number % 30}, tool:service-{number}/get_*, tools/call, -, {limit}, {condition}, {effect}"
        )
    return "\n".join(rows) + "\n"
