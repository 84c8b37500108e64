"""How do these tests write a policy and ask it?"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sidecar.errors import Fault, PolicyError
from sidecar.policy import Engine, PolicySource, load_policy
from sidecar.settings.policy import PolicyScope
from sidecar.vocabulary import Principal, Question

REPOSITORY = Path(__file__).parents[3]
MODELS = REPOSITORY / "models"
NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
BEFORE, AFTER = "2027-01-15T07:59:59Z", "2027-01-15T08:00:01Z"  # one second around NOW
SOMETHING = "p, nhi:nobody, tool:none/none, tools/call, -, -, -, allow"


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Files by name; a folder anew for each call is the caller's business."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder


def scope(
    files: str, subjects: Sequence[str] = (), objects: Sequence[str] = (), roles: Sequence[str] = ()
) -> PolicyScope:
    return PolicyScope(files=files, subjects=tuple(subjects), objects=tuple(objects), roles=tuple(roles))


def source(folder: Path, files: Mapping[str, str], **more: Any) -> PolicySource:
    return load_policy(more.pop("models", MODELS), write(folder, files), **more)


def engine(folder: Path, files: Mapping[str, str], **more: Any) -> Engine:
    """An engine over files named by their stem: {"agent_to_tool": rows}."""
    named = {name if "." in name else f"{name}.csv": text for name, text in files.items()}
    return Engine(source(folder, named, **more))


def faults(folder: Path, files: Mapping[str, str], **more: Any) -> list[Fault]:
    """What is wrong with it; [] if nothing is."""
    try:
        source(folder, files, **more)
    except PolicyError as error:
        return list(error.faults)
    return []


def chain(*names: str, roles: Mapping[str, frozenset[str]] | None = None) -> tuple[Principal, ...]:
    return tuple(Principal(name, roles=(roles or {}).get(name, frozenset())) for name in names)


def tool(name: str, arguments: Mapping[str, Any] | None = None, *, meta: Mapping[str, Any] | None = None) -> Question:
    """`github/search` as a tools/call."""
    server, _, rest = name.partition("/")
    return Question(f"tool:{name}", "tools/call", server, rest, arguments or {}, meta or {})


def session(server: str, action: str = "initialize") -> Question:
    return Question(f"nhi:{server}", action, server)


def agent(name: str, action: str = "message/send") -> Question:
    return Question(f"nhi:{name}", action, "")
