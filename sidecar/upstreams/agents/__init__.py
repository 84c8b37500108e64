"""How is an agent reached?

wire         what every agent looks like from here: a canonical operation out, a canonical result or its own no back
over_http    JSON-RPC and HTTP+JSON, of 0.3 and 1.0
watched      the breaker and the share of a caller, around any wire
agent        one agent that stands behind us, all of it
"""

from sidecar.upstreams.agents.agent import Agent, Cards, agent_from
from sidecar.upstreams.agents.wire import AgentWire, Heard, Outgoing

__all__ = ["Agent", "AgentWire", "Cards", "Heard", "Outgoing", "agent_from"]
