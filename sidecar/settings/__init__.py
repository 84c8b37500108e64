"""What did the operator decide outside of policy?

load_settings   sidecar.yaml and the environment → Settings, or every fault at once
Settings        root.py; one file for each section: server identity policy store audit upstreams
documents       the strict YAML reader, also for rules, budgets and tests
environment     SIDECAR_A__B, _FILE, ${VAR}
findings        what is wrong, in words; nodes: where it stands; scalars: what may stay unquoted
secrets         reading a secret from a file, and refusing a weak one
shipped         the models and policies that travel with the release
"""

from sidecar.settings.load import load_settings
from sidecar.settings.root import Settings

__all__ = ["Settings", "load_settings"]
