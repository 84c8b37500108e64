"""The kill switch: disabled principals, tools and servers.

    entries.py          a disabled principal, tool or server, and whether a call touches one
    file.py             policies/disabled.yaml: the entries of the policy's owners
    known_names.py      finds misspelled names
    switch_versions.py  one manual change, as it is stored and shared, and the order of two changes
    ledger.py           all changes that this replica knows, on disk
    switch.py           disables and enables: on disk, in audit records, at every replica

Principals are checked after authentication, and tools after policy, so that only callers with permission learn that a
tool is disabled. Both checks also apply in shadow mode. With a shared store, a change reaches every replica
(`storage/scripts/kill_switch.lua`); without one, or during an outage, the changes that this replica knows stay in
force.
"""

from sidecar.gateway.kill_switch.entries import NONE_DISABLED, Disabled, SwitchEntry, object_of
from sidecar.gateway.kill_switch.file import DISABLED_FILE, load_disabled
from sidecar.gateway.kill_switch.ledger import LEDGER_FILE, SwitchLedger
from sidecar.gateway.kill_switch.switch import KillSwitch, SwitchError

__all__ = [
    "DISABLED_FILE", "LEDGER_FILE", "NONE_DISABLED", "Disabled", "KillSwitch", "SwitchEntry", "SwitchError",
    "SwitchLedger", "load_disabled", "object_of",
]  # fmt: skip
