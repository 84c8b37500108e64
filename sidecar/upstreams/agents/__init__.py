"""Connects to A2A agents.

wire         what every agent looks like from here: a canonical operation out, a canonical result or its own no back
over_http    JSON-RPC and HTTP+JSON, of 0.3 and 1.0
watched      the breaker and the share of a caller, around any wire
agent        one agent that stands behind us, all of it
"""

from sidecar.upstreams.agents.agent import AgentCards, AgentUpstream, agent_from
from sidecar.upstreams.agents.transport import AgentEvents, AgentTransport, OutgoingOperation

__all__ = ["AgentCards", "AgentEvents", "AgentTransport", "AgentUpstream", "OutgoingOperation", "agent_from"]
