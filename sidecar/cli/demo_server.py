"""The demo's server, on the official MCP SDK: `python -m sidecar.cli.demo_server PORT [HOST]`."""

import sys
from typing import Annotated

from pydantic import Field

try:
    from mcp.server import MCPServer
except ModuleNotFoundError:
    sys.exit("this server needs the official MCP SDK: pip install 'nhi-sidecar[demo]'")

NOTES = {"acme/site": ["launch is on Tuesday", "the logo is too small"], "acme/api": ["rate limits went live"]}

server = MCPServer("notes", log_level="ERROR")


@server.tool()
def search_notes(
    repo: Annotated[str, Field(max_length=64)], limit: Annotated[int, Field(ge=1, le=50)] = 10
) -> list[str]:
    """Notes about a repository."""
    return NOTES.get(repo, [])[:limit]


@server.tool()
def delete_note(repo: str, index: int) -> str:
    """Delete a note."""
    return NOTES[repo].pop(index)


@server.tool()
def archive_notes(repo: str) -> str:
    """Archive the notes about a repository."""
    return f"{len(NOTES[repo])} notes of {repo} are archived"


def main() -> None:
    port, host = sys.argv[1], (*sys.argv[2:], "127.0.0.1")[0]
    server.run("streamable-http", host=host, port=int(port))


if __name__ == "__main__":
    main()
