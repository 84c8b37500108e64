"""sidecar: a policy-as-code authorization proxy for AI agents.

The path of a call:

    caller ──▶ http/server ──▶ gateway/pipeline ──▶ gateway/forwarder ──▶ upstream
                                      │                     │
                    address           gateway/routing       gateway/response_stream, response_filter, redaction
                    caller            identity/
                    operation         gateway/frontends/, protocols/
                    kill switch       gateway/kill_switch/
                    decision          policy/
                    task ownership    gateway/ownership, storage/
                    limits            limits/
                    audit record      audit/

The packages:

    gateway/        the policy enforcement point: request pipeline, frontends, kill switch, response filtering
    http/           HTTP on both sides: the client for upstreams, the server for callers; TLS and signing keys
    identity/       authenticates callers and builds their chains
    policy/         compiles rules and decides calls; the only package that imports Casbin
    policy_tools/   tests, analyses and reviews policies before they serve
    limits/         rate limits, concurrency limits and budgets
    audit/          writes, chains, copies and verifies audit records
    storage/        records that outlive a request: in memory, SQLite or Redis
    tasks/          the task API, agent programs, schedules and callbacks
    upstreams/      MCP servers and A2A agents
    protocols/      parsers and writers of MCP, A2A and JSON-RPC
    admin/          the admin listener: health, metrics, the admin API, the console, decisions for others
    app/            builds, starts, reloads and stops the process
    observability/  metrics, traces, the operator's log and the log of outages
    settings/       sidecar.yaml and the environment: their models, and reading them
    cli/            one module per command

`vocabulary` defines the shared nouns, `errors` the reason of every refusal. `client` is for applications that ask for
decisions, and imports none of the others. Imports point one way (pyproject.toml, importlinter).
"""

__version__ = "0.1.0"
