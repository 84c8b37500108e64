"""Fetches policies from git, signed bundles, or adapters of pycasbin.

    tarball.py           unpacks archives, which are untrusted
    bundle.py            makes, signs, checks and unpacks signed bundles
    https.py             fetches a bundle from a URL
    git.py               fetches the files of a git ref
    adapter.py           reads the rows of a pycasbin adapter
    stored_revisions.py  stores fetched policies on disk, and refuses older and much smaller ones
    poller.py            polls the source and adopts new policies

A policy from a source passes the same checks as a folder, including self-test and scopes: a signature proves who made a
policy, not that it is correct.
"""
