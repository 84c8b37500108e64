"""Do the commands of every page do what it says? README and the tutorial are run by tests/flow/test_docs.py."""

import shutil
from pathlib import Path

import pytest

from tests.flow.test_docs import FIRST, RUNNABLE, check_page


@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages use curl")
@pytest.mark.parametrize("name", [name for name in RUNNABLE if name not in FIRST])
def test_what_a_page_says_to_type_does_what_it_says(name: str, tmp_path: Path, commands: Path) -> None:
    check_page(name, tmp_path, commands)
