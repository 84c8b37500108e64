"""The kill switch: disabled principals, tools and servers.

    entries.py     a disabled principal or tool, and whether a call touches one
    file.py        policies/disabled.yaml: what the policy's owners have disabled
    switch_versions.py       one turn of the switch by hand, as it is kept and shared: of two, which is the newer
    ledger.py      every flip that this replica knows, on disk
    switch.py      disable and enable: on disk, on record, and at every replica
    merge.lua      how the replicas' flips meet in the store

Principals are asked after authentication and before policy, tools after it, so that only who might call one learns that
it is off; no mode of policy changes the answer. A store makes it reach every
replica; without one, or while it is out, what this replica knows stays in force.
"""

from sidecar.gateway.kill_switch.entries import NOBODY, Disabled, SwitchEntry, is_name, object_of
from sidecar.gateway.kill_switch.file import DISABLED_FILE, load_disabled
from sidecar.gateway.kill_switch.ledger import LEDGER_FILE, SwitchLedger
from sidecar.gateway.kill_switch.switch import KillSwitch, Share, SwitchError

__all__ = [
    "DISABLED_FILE",
    "LEDGER_FILE",
    "NOBODY",
    "Disabled",
    "KillSwitch",
    "Share",
    "SwitchEntry",
    "SwitchError",
    "SwitchLedger",
    "is_name",
    "load_disabled",
    "object_of",
]
