"""The settings in sidecar.yaml.

load                loads settings from sidecar.yaml and the environment, or reports all faults at once
sidecar_file        the root model; its sections are in modules of their own: server identity policy store upstreams …
schema              JSON Schemas of the YAML files, with the docstrings below fields as descriptions
yaml_document       the strict YAML reader, also for rules, budgets and tests
environment         applies SIDECAR_A__B, _FILE and ${VAR}
validation_errors   describes faults; yaml_nodes locates them; yaml_scalars defines which values need no quotes
secrets             reads and creates secrets in files, and refuses weak ones
programs            resolves a program's executable and environment
shipped_files       finds the models and policies that ship with the release; stored_policy, those of a remote source
writing             replaces files atomically

Codes of faults: Y0.. the text of a YAML file, Y1.. its shape (yaml_document.py); docs/reference/error-codes.md has all.
"""
