"""Prepares pages for the site: what the first line of a code block says becomes its title, and the version is ours."""

import re
from typing import Any

from sidecar import __version__

_FENCE = re.compile(r"^( *)```(\w+) (\S.*?) *$", re.MULTILINE)


def on_config(config: Any) -> Any:
    config.extra["release"] = __version__
    config.site_description += f" (version {__version__})"
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn the conventions of tests/pages.py into those of the highlighter: ```yaml FILE gets FILE as its title."""
    return _FENCE.sub(_titled, markdown)


def _titled(found: re.Match[str]) -> str:
    indent, language, info = found.groups()
    title = info.removesuffix(" wrong")
    if language in ("sh", "text") or "." not in title:  # `exit=3`, `output`, another program's file
        return f"{indent}```{language}"
    return f'{indent}```{language} title="{title}"'
