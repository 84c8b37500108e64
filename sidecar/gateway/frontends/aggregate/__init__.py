"""Serves all MCP servers of a caller at one address.

At `/mcp` a caller meets every server that it may see. What names one of them (a call, a prompt, a resource) is
translated once, and then goes the very way it would have gone at that server's own address: same objects, same rules,
same limits, same evidence. What names none is asked of all of them at once, and put together.

names.py          what a server's names look like here, in both directions
cursors.py        where in all those lists a page ends
request_reader.py  what is wanted, and of which server
visible_servers.py        which servers there are, for this caller
member_sessions.py          the sessions at the servers that stand behind one session here
fan_out.py      one question to many servers, answered within a time
stream_merge.py        one stream to the caller out of the streams of many
frontend.py     what becomes of a call that names no server
"""

from sidecar.gateway.frontends.aggregate.frontend import AggregateFrontend
from sidecar.gateway.frontends.aggregate.request_reader import AggregateReader, SpreadIntent

__all__ = ["AggregateFrontend", "AggregateReader", "SpreadIntent"]
