"""Formats facts, sizes and usage of runs, and hints for refused ones."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sidecar.protocols.hidden_characters import shown

OPERATOR: Final = "nhi:operator"


def cause(error: Mapping[str, Any] | None) -> str | None:
    return f"{error['category']}: {error['message']}" if error else None


def row_for(principal: str, agent: str) -> Mapping[str, str]:
    """Returns hints by refusal reason: the missing row that would allow the call, and its file."""
    kind = "user_to_nhi" if principal.startswith("user:") else "nhi_to_nhi"
    return {"no-matching-rule": f"in policies/{kind}.csv: p, {principal}, nhi:{agent}, message/send, -, -, -, allow"}


def figures(usage: Mapping[str, Any]) -> str:
    read, written = amount(usage["disk_read_bytes"]), amount(usage["disk_write_bytes"])
    peak = amount(usage["peak_memory_bytes"])
    return f"{usage['cpu_s']:.2f} s of CPU, {peak} of memory at most, {read} read, {written} written"


def amount(size: int) -> str:
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}"


def facts(told: Mapping[str, Any]) -> Iterator[str]:
    for name, value in told.items():
        if value not in (None, ""):
            yield f"  {name:<14}{shown(str(value))}"
