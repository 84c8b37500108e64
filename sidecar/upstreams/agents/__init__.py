"""Connects to A2A agents.

transport.py           the interface: a canonical operation out, a canonical result or the agent's error back
http_transport.py      JSON-RPC and HTTP+JSON, of 0.3 and 1.0
grpc_transport.py      gRPC, of 0.3 and 1.0
guarded_transport.py   the breaker and fair shares, around any transport
card.py                fetches and refreshes an agent's card
agent.py               one configured agent, with all of the above
"""

from sidecar.upstreams.agents.agent import AgentCards, AgentUpstream, agent_from
from sidecar.upstreams.agents.transport import AgentEvents, AgentTransport, OutgoingOperation

__all__ = ["AgentCards", "AgentEvents", "AgentTransport", "AgentUpstream", "OutgoingOperation", "agent_from"]
