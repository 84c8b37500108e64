"""What does an operator read for each code? The examples of `docs/reference/policy-errors.md`, which are tests as well.

`tests/golden/policy/catalogue/P104.txt` holds the examples of P104: tiny policies, each with what is told of it.

    === the action is mistyped                    begins an example, and says what is wrong in it
    --- policies/agent_to_tool.csv                a file of it; models are the shipped ones unless they are given
    --- with                                      what else is known, in YAML: upstreams, scopes, tokens, strict,
                                                  `catalogue` of the servers' tools,
                                                  `casbin`: the settings of Casbin models,
                                                  encoding of the files, files to be taken away (`without`),
                                                  `links` by the path of each, with what it points to,
                                                  `missing: true` for no folder of rows at all; `rows`:
                                                  how many more there are; `also`: other codes that
                                                  cannot but be told with it
    --- told                                      every fault, as it stands on the screen
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sidecar.policy_tools.catalogue import read_catalogue
from sidecar.policy_tools.check import CheckReport, check
from sidecar.policy_tools.check.formats import CODES
from sidecar.policy_tools.check.linted_policy import Granting
from sidecar.policy_tools.policy_location import PolicyLocation
from sidecar.settings.policy import CasbinSettings
from tests.tables import tables
from tests.unit.policy.world import scope

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "tests" / "golden" / "policy" / "catalogue"
NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z
_MANY = "p, nhi:agent-{0}, tool:files/read_{0}, tools/call, -, -, -, allow\n"
TOLD, WITH = "told", "with"


@dataclass(frozen=True)
class Example:
    """One tiny policy and what is told of it."""

    code: str
    title: str
    files: Mapping[str, str]
    told: str
    given: Mapping[str, Any] = field(default_factory=dict)

    def run(self, folder: Path, *, replaced: Mapping[str, str] | None = None) -> CheckReport:
        """Check it in a fresh folder, from where its files have their short names."""
        files = {**self.files, **(replaced or {})}
        shutil.copytree(REPOSITORY / "models", folder / "models")
        if not self.given.get("missing"):
            (folder / "policies").mkdir()
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode(self.given.get("encoding", "utf-8")))
        many = "".join(_MANY.format(number) for number in range(self.given.get("rows", 0)))
        if many:
            (folder / "policies" / "agent_to_tool.many.csv").write_text(many, "utf-8")
        for name in self.given.get("without", ()):
            (folder / name).unlink()
        for name, target in self.given.get("links", {}).items():
            (folder / name).symlink_to(target)
        upstreams, tokens = self.given.get("upstreams"), self.given.get("tokens")
        scopes = [scope(**{key: _tuple(value) for key, value in one.items()}) for one in self.given.get("scopes", ())]
        place = PolicyLocation(
            Path("models"),
            Path("policies"),
            scopes,
            None if upstreams is None else frozenset(upstreams),
            casbin=CasbinSettings.model_validate(self.given.get("casbin", {})),
            config=Path("sidecar.yaml") if "sidecar.yaml" in files else None,
        )
        granting = None if tokens is None else [Granting(**{k: _tuple(v) for k, v in one.items()}) for one in tokens]
        with inside(folder):
            known = None
            if "catalogue" in self.given:
                Path("tools.json").write_text(json.dumps(self.given["catalogue"]), "utf-8")
                known = read_catalogue(Path("tools.json"))
            return check(place, granting=granting, catalogue=known, now_s=NOW_S, strict=bool(self.given.get("strict")))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def told_by(report: CheckReport) -> str:
    return "".join(f"{fault}\n" for fault in report.faults)


def codes_with_examples() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("P*.txt"))


def examples_of(code: str) -> list[Example]:
    text = (FOLDER / f"{code}.txt").read_text("utf-8")
    return [_example(code, part) for part in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]]


def _example(code: str, text: str) -> Example:
    title, _, rest = text.partition("\n")
    parts = dict(re.findall(r"^--- ([^\n]+)\n(.*?)(?=^--- |\Z)", rest, flags=re.MULTILINE | re.DOTALL))
    given = yaml.load(parts.pop(WITH, "{}"), yaml.CSafeLoader)
    told = parts.pop(TOLD, "")
    return Example(code, title, parts, told, given)


def written(examples: list[Example]) -> str:
    """The text of a file with these examples."""
    texts = []
    for example in examples:
        parts = [*example.files.items()]
        if example.given:
            parts.append((WITH, yaml.safe_dump(example.given, sort_keys=False, allow_unicode=True)))
        parts.append((TOLD, example.told))
        texts.append(f"=== {example.title}\n" + "".join(f"--- {name}\n{text}" for name, text in parts))
    return "".join(texts)


# --- docs/reference/policy-errors.md --------------------------------------------------------------------------------


def errors_page() -> str:
    """The generated part of docs/reference/policy-errors.md: every code, its meaning, how to mend it, its examples."""
    parts = []
    for prefix, title in tables("policy/catalogue")["groups"]:
        codes = [code for code in CODES if code.startswith(prefix)]
        if codes:
            parts.append("\n\n".join([f"## {title}", *map(_entry, codes)]))
    return "\n\n".join(parts)


def _entry(code: str) -> str:
    meaning = CODES[code]
    examples = [_block(one) for one in examples_of(code)] if code in codes_with_examples() else []
    heading = f"### {code}" if meaning.level == "error" else f"### {code} ({meaning.level})"
    return "\n\n".join([heading, f"**{_prose(meaning.about)}.** {_prose(meaning.mend)}", *examples])


def _block(example: Example) -> str:
    return f"{example.title}:\n\n```text\n{example.told}```" if example.told else ""


def _prose(text: str) -> str:
    """Names in angle brackets would be taken for tags."""
    return text.replace("<", "&lt;").replace("*", "\\*")
