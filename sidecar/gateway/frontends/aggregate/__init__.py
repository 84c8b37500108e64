"""Serves all MCP servers of a caller at one address.

At `/mcp` a caller reaches every server that it may see. A request that names a server (a call, a prompt, a resource) is
translated once and then handled as at that server's own address: same objects, same rules, same limits, same audit. A
request that names none is sent to all of them concurrently, and the answers are merged.

names.py            maps names of servers' objects, in both directions
cursors.py          seals the cursors of merged lists
request_reader.py   reads requests and finds their servers
visible_servers.py  selects the servers that a caller may see
member_sessions.py  the sessions at the servers behind one aggregate session
fan_out.py          sends one request to many servers within a deadline
stream_merge.py     merges the streams of many servers into one
frontend.py         answers requests that name no server
"""

from sidecar.gateway.frontends.aggregate.frontend import AggregateFrontend
from sidecar.gateway.frontends.aggregate.request_reader import AggregateReader, SpreadIntent

__all__ = ["AggregateFrontend", "AggregateReader", "SpreadIntent"]
