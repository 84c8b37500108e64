"""Builds the card of a CLI-program agent, which shows no path, argument or variable."""

from typing import Any, Final

from sidecar.protocols.a2a.messages import V10
from sidecar.settings.agents import CliAgent, Skill

# Capabilities that A2A has no fields for: A2ACapabilities of the original data models, under its names.
CAPABILITIES: Final = "urn:sidecar:a2a:capabilities"
TEXT: Final = "text/plain"
JSON: Final = "application/json"


class DefinedCard:
    def __init__(self, name: str, definition: CliAgent) -> None:
        self._card = card_of(name, definition)

    async def prepare(self) -> None:
        """Does nothing: the card is always known."""

    async def card(self) -> dict[str, Any]:
        return self._card

    def has_skill(self, name: str) -> bool:
        return any(skill["id"] == name for skill in self._card["skills"])

    async def close(self) -> None:
        pass


def card_of(name: str, definition: CliAgent) -> dict[str, Any]:
    """Returns the canonical card; addresses are filled in for each caller (`gateway/frontends/a2a/cards.py`)."""
    called = definition.name or name
    about = definition.description or called
    able = definition.a2a.capabilities.model_dump(mode="json")
    return V10.read(
        "AgentCard",
        {
            "name": called,
            "description": about,
            "version": definition.a2a.version,
            "capabilities": {
                "streaming": streams(definition),
                "pushNotifications": False,
                "extensions": [
                    {
                        "uri": CAPABILITIES,
                        "description": "What it can be asked, and how much it takes and says.",
                        "params": able | {"concurrent_execution": definition.places > 1, "mode": definition.mode},
                    }
                ],
            },
            "defaultInputModes": list(definition.a2a.capabilities.supported_content_types),
            "defaultOutputModes": [TEXT, JSON] if definition.patterns.output == "json-rpc" else [TEXT],
            "skills": [  # A2A requires a description
                skill.model_dump(mode="json") | {"description": skill.description or skill.name}
                for skill in definition.a2a.skills or (Skill(id=name, name=called, description=about, tags=("cli",)),)
            ],
        },
    )


def streams(definition: CliAgent) -> bool:
    able = definition.a2a.capabilities
    return able.streaming_support and "message/stream" in able.supported_methods
