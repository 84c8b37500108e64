"""Reads and rewrites the configuration files of MCP clients.

jsonc          JSON with comments → a tree that knows its places, and where each member lies in the text
configuration  whose format is this, and which servers does it name?
references     `${VAR}`, `${input:id}`, `${workspaceFolder}` … in our words
hiding         what of it is a secret, and may stand in no sidecar.yaml?
folder         those servers as upstreams, files of secrets and first rules of a working folder
wrapping       the client's own file, edited to go through us, and back
snippets       the same for a client that has no file yet
bridge         a stdio server that leads to an address, for a client that only starts programs
"""
