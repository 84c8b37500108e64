"""Do the examples do what their READMEs tell people to type?

Each README is run as it stands (tests/pages.py has the convention), in a copy of its folder.
"""

import re
from pathlib import Path

import pytest

from tests.flow.test_docs import PORTS, check_claims, run, script_of
from tests.pages import ROOT, blocks_of

READMES = sorted((ROOT / "examples").glob("*/README.md"))


@pytest.mark.parametrize("readme", READMES, ids=lambda readme: readme.parent.name)
def test_the_readme_of_an_example_does_what_it_says(readme: Path, tmp_path: Path, commands: Path) -> None:
    blocks = list(blocks_of(readme.read_text("utf-8")))
    # `run` moves each second port to a free one.
    moved = " ".join(f"-e 's/{port[:-1]}[{port[-1]}]/{port}/'" for port in PORTS)
    copied = (
        f"set -e\ncp -R '{readme.parent}/.' .\n"
        f"find . -maxdepth 1 -name '*.*' -type f -exec sed -i {moved} {{}} +\n"
        f"export PYTHONPATH='{ROOT}'\n"
    )
    code, text = run(copied + script_of(blocks), tmp_path, commands)
    assert code == 0, f"ended with {code}:\n{text}"
    check_claims(blocks, text, readme.relative_to(ROOT).as_posix())


@pytest.mark.parametrize("readme", READMES, ids=lambda readme: readme.parent.name)
def test_what_the_readme_of_an_example_links_to_is_there(readme: Path) -> None:
    for target in re.findall(r"\]\(([^)\s#]+)", readme.read_text("utf-8")):
        assert "://" in target or (readme.parent / target).exists(), target
