"""What do the clients that people use show of a sidecar's answers?

    make clients                    tries every client, prints the table, and writes results.json and the page
    make clients CLIENT=fastmcp     tries one, prints all that it heard, and writes its part

Each client plays one part, in a process of its own and with its own library, against real sidecar processes: one for
each `deny_style`. It tells what it heard (`play.py`, `play.mjs`), and decides nothing. `roster.py` names the clients,
`table.py` makes the table from results.json. Environments: `.venv-clients` (mcp 2.x), `.venv-clients/mcp1` (mcp 1.x),
`.venv-clients/npm` (Node).
"""
