"""Serves all MCP servers of a caller at one address.

At `/mcp` a caller reaches every server that it may see. A request that names a server (a call, a prompt, a resource) is
translated once and then handled as at that server's own address: same objects, same rules, same limits, same audit. A
request that names none is sent to all of them concurrently, and the answers are merged.

names.py            maps names of servers' objects, in both directions
request_reader.py   reads requests and finds their servers
fan_out.py          the servers that a caller sees, its sessions there, and requests to all of them
stream_merge.py     merges the streams of many servers into one
frontend.py         answers requests that name no server
"""
