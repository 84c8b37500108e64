"""`sidecar`, with slots that come back after a second instead of a minute: a test does not wait that long."""

from functools import partial

import sidecar.app.shared_store
from sidecar.cli import main
from sidecar.limits import Limiter, open_store

LEASE_S = 1.0

if __name__ == "__main__":
    vars(sidecar.app.shared_store)["open_store"] = partial(open_store, lease_s=LEASE_S)
    vars(sidecar.app.shared_store)["Limiter"] = partial(Limiter, lease_s=LEASE_S)
    main()
