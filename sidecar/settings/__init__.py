"""The settings in sidecar.yaml.

load_settings   sidecar.yaml and the environment → Settings, or every fault at once
Settings        sidecar_file.py; one file for each section: server identity policy store audit upstreams
documents       the strict YAML reader, also for rules, budgets and tests
environment     SIDECAR_A__B, _FILE, ${VAR}
findings        what is wrong, in words; nodes: where it stands; scalars: what may stay unquoted
secrets         reading a secret from a file, and refusing a weak one
programs        which program a command names, and what environment it gets
shipped         the models and policies that travel with the release

Codes of faults: Y0.. the text of a YAML file, Y1.. its shape (yaml_document.py); of settings themselves:

S101-S104  a listener that reaches too far: without public_url, without tls, though local, without credentials
S106-S111  issuers: algorithms, keys, clients (2), one twice, namespaces
S113-S115  an upstream's credential, its header, an address taken twice
S116-S117  a file or folder, a program that is not there
S118-S119  a credential that is passed through; a signing key
S120-S121  a secret that is none; one that is weak, or that others may read
S122-S123  a peer; SPIFFE IDs
S124-S126  a listener's certificate files; whose client certificates are; a proxy that tells of them
S127       what does not fit an agent's address, or an agent
S128-S129  a store of tasks that is not there; a place that cannot be written
S130-S131  what is taken out of answers
S132-S133  a file of variables; an address that cannot be listened on
S134       an agent whose card nobody finds
S136       what of a store does not belong together
S140-S141  shadow mode
S150       sinks of the evidence that do not go together; arguments that it must not hold
S151       arguments that are recorded in clear
S160-S163  a source of policy: beside folders, with nothing taken, its record, the shelf
S170-S173  agents: what a call may choose, an address' credential, how a program is told and heard, how often it runs
S174       by which names and where an agent is found, and what is spoken there
S175-S179  schedules: a time zone, a calendar, an agent that there is not; a name twice; one that stands behind us
S180-S181  what a schedule would tell its program, and may not; one that no rule allows
S201-S204  the environment (environment.py)
"""

from sidecar.settings.load import load_settings
from sidecar.settings.sidecar_file import Settings

__all__ = ["Settings", "load_settings"]
