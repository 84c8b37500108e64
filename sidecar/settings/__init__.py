"""The settings in sidecar.yaml.

load                loads settings from sidecar.yaml and the environment, or reports all faults at once
sidecar_file        the root model; each section has a module: server identity policy store audit upstreams …
yaml_document       the strict YAML reader, also for rules, budgets and tests
environment         applies SIDECAR_A__B, _FILE and ${VAR}
validation_errors   describes faults; yaml_nodes locates them; yaml_scalars defines what may stay unquoted
secrets             reads secrets from files, and refuses weak ones
programs            resolves a program's executable and environment
shipped_files       finds the models and policies that ship with the release

Codes of faults: Y0.. the text of a YAML file, Y1.. its shape (yaml_document.py). Codes of the settings:

S101-S104  a listener that is too exposed: without public_url, without tls, local but public, without credentials
S106-S111  issuers: algorithms, keys, clients (2), duplicates, namespaces
S113-S115  an upstream's credential, its header, a duplicate address
S116-S117  a missing file or folder, a missing program
S118-S119  a credential that is passed through; a signing key
S120-S121  an invalid secret; one that is weak or readable by others
S122-S123  a peer; SPIFFE IDs
S124-S126  a listener's certificate files; owners of client certificates; trusted proxies
S127       settings that do not fit an agent's address, or an agent
S128-S129  a missing task store; a place that cannot be written
S130-S131  redaction of responses
S132-S133  a file of variables; an address that cannot be bound
S134       an agent without a card that callers can find
S136       store settings that contradict each other
S140-S141  shadow mode
S150       audit sinks that contradict each other; arguments that must not be recorded
S151       arguments that are recorded in clear
S160-S163  a policy source: beside folders, with nothing taken, its record, its store
S170-S173  agents: choices of a call, an address' credential, input and output, rates
S174       an agent's names, paths and protocols
S175-S179  schedules: a time zone, a cron expression, an unknown agent; a duplicate name; the name of an upstream
S180-S181  a schedule's input that its program refuses; one that no rule allows
S201-S204  the environment (environment.py)
"""

from sidecar.settings.load import load_settings
from sidecar.settings.sidecar_file import Settings

__all__ = ["Settings", "load_settings"]
