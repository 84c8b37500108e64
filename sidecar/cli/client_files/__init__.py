"""Reads and rewrites the configuration files of MCP clients.

jsonc             JSON with comments → a tree with positions, and the extent of each member in the text
formats           the clients' formats as a table, and what each client writes to reach the sidecar
configuration     the servers that a file names
references        `${VAR}`, `${input:id}`, `${workspaceFolder}` … as references of sidecar.yaml
secret_detection  which values are secrets and must not be written to sidecar.yaml
folder            these servers as upstreams, files of secrets and first rules of a working folder
wrap              edits the client's own file to lead through the sidecar, and restores it
bridge            a stdio server that forwards to an address, for a client that only starts programs
"""
