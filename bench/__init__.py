"""What does a call cost on its way through, and what would a bare proxy cost?

`make bench` asks the same call of the same server in five ways, turn by turn on one machine:

    direct               load → upstream
    passthrough          load → aiohttp server and client, nothing else → upstream
    passthrough_tuned    the same as fast as it gets: low-level server, uvloop, answers held until they are whole
    sidecar_memory       load → sidecar with everything on, limits in the process → upstream
    sidecar_valkey       the same, limits in Valkey → upstream

    call.py      the message and its answer          stub.py         the upstream
    folder.py    the sidecar's configuration         passthrough.py  the proxy to compare with
    subjects.py  what is started                     load.py         wrk or hey
    process.py   start, measure, end a process       report.py       medians, ratios, the table
"""
