"""sidecar: a policy-as-code authorization proxy beside AI agents.

A call's way, and where each question is answered:

    caller ──▶ listeners ──▶ pipeline ──▶ exchanges ──▶ upstream
                               │              │
        at which address?      arrival        passage, relay   what of the answer may the caller have?
        who?                   identity/
        what?                  fronts, intents, protocols/
        anybody disabled?      disabled/
        may they?              policy/
        whose task is it?      custody, tasks/
        well formed?           arguments
        how often?             limits/; refusals: and how often may they be refused?
        who remembers?         audit/
        how many, how long?    measures, metrics, tables

    app        how a sidecar starts, lives and stops, and what its operators ask of it
    evidence   what is remembered of the sidecar itself; shared: what replicas have in common
    wiring     which objects stand on a call's way; listening: at which addresses who answers
    desk/      what operators see and do of programs that are agents, of their runs and of schedules
    status     how it stands; gauges: the same as series; enforcement: whether policy is enforced or only recorded
    jobs       what runs in the background, and what if it ends
    loading    from the operator's files to one snapshot; entrances: from addresses to what they answer to
    snapshot   what one request reads, frozen; swapped whole on reload
    watching   whether the operator's files changed; reloading: how that comes into force
    replicas   whether the others serve the same policy
    sources/   policies that lie elsewhere: signed bundles, git refs
    turn       what is known of one request while it is on its way
    pacing     when a large body has its turn
    oversight  whether who was let in may still have what they have; places: how many streams each may have
    drift      whether a server's tools are still those that were approved
    inspection what an upstream's own rules take out of an answer, and keep of it; screening/: how that is found
    federation/ how many servers look like one, at the address of all
    plain/     calls of tools for curl and scripts, and the document that describes them
    a2a/       calls of agents; task_api/: the same for people and scripts that speak no A2A; schedules/: by the clock
    agents/    programs on the command line as agents: each run from its order to its end
    records/   what outlives a request, and often the process; outages: how it is told that a store is out
    answers    how a no is told, in the caller's protocol
    whole      how an answer that is all there goes out; outlets: where the events of one that is not are written
    paired     the stream that all answers of an HTTP+SSE session share
    egress/    every connection that we open; processes/: every program that we start
    settings/  what the operator decided; calendar: when what runs by the clock is due
    suites/    the policy's own tests; workbench/: what else a policy goes through before it serves
    clients/   the configuration that MCP clients already have, and how it comes behind us
    cli/       one file per command

The words are in `vocabulary`, the reasons of every refusal in `errors`. Imports point one way (pyproject.toml,
importlinter), and only `policy/` knows Casbin.
"""

__version__ = "0.1.0"
