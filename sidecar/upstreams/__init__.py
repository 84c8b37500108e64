"""Connects to MCP servers and agents.

mcp/                  MCP servers: transports, sessions, the bridge between MCP revisions, the catalogue, pins
agents/               A2A agents: transports and cards
credentials/          the credentials that upstreams receive
processes/            programs: started, bounded, and ended with all their descendants
http_address.py       the connections to one HTTP address of an upstream, with its credential
breaker.py            the circuit breaker
health.py             probes of upstreams; health_report.py is `sidecar mcp test`
upstream_account.py   the state, errors and latency of one upstream, and the outcome of each use
fair_share.py         bounds each caller's share of an upstream
statuses.py           maps an upstream's HTTP status to a caller's refusal
"""
