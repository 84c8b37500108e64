"""Fetches policies from git or signed bundles.

    tarball.py   an archive, read as if an enemy had packed it
    bundle.py    a policy in one signed file: made, signed, checked, unpacked
    https.py     the bundle that lies at an address
    git.py       the files that a git ref names
    version_order.py    which policy is not put in the place of which
    stored_revisions.py     what was taken last, on disk: what serves while the source is out
    poller.py when the source is looked at, and what becomes of what is found there

What came from a source is checked as a folder is, self-test and scopes included: a signature says who made a policy,
not that it is good.
"""

from sidecar.app.policy_sources.poller import SourcePoller, origin_of
from sidecar.app.policy_sources.stored_revisions import SourceError, kept_for

__all__ = ["SourceError", "SourcePoller", "kept_for", "origin_of"]
