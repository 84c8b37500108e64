"""Prepares pages for the site: titles of code blocks, the version in the footer, `mike` where it deploys.

Documentation
-------------
`make docs` builds the site into build/site. A dead link, a dead anchor or a page without a place in the navigation
fails it. `.venv/bin/mkdocs serve` shows the site while you write, `python -m docs.lint FILE…` checks your prose, and
`python -m docs.make` writes the generated parts. To publish a release next to the earlier ones, on the branch gh-pages:

    mike deploy --update-aliases --push 0.1 latest
"""

import os
import re
from typing import Any

from sidecar import __version__

_FENCE = re.compile(r"^( *)```(\w+) (\S.*?) *$", re.MULTILINE)


def on_config(config: Any) -> Any:
    config.copyright = f"sidecar {__version__}"
    if "MIKE_DOCS_VERSION" in os.environ:  # mike builds, and writes the list of versions that the menu reads
        config.extra["version"] = {"provider": "mike"}
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn the conventions of tests/pages.py into those of the highlighter: ```yaml FILE gets FILE as its title."""
    return _FENCE.sub(_titled, markdown)


def on_post_page(output: str, **_: Any) -> str:
    """The theme's search is a dialog without a name."""
    return output.replace('data-md-component="search" role="dialog"', 'data-md-component="search" role="search"')


def _titled(found: re.Match[str]) -> str:
    indent, language, info = found.groups()
    title = info.removesuffix(" wrong")
    if language in ("sh", "text") or "." not in title:  # `exit=3`, `output`, another program's file
        return f"{indent}```{language}"
    return f'{indent}```{language} title="{title}"'
