"""What is left inside a sidecar? `python -m bench.inside OUT serve …` is `sidecar serve …`, and answers SIGUSR1.

The answer, in OUT: how many tasks there are, and how many objects of those that a stream is made of.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
from pathlib import Path

from sidecar.cli import main as sidecar
from sidecar.gateway.request import RequestContext, UpstreamExchange
from sidecar.http.client import ClientResponse

OF_A_STREAM = (UpstreamExchange, RequestContext, ClientResponse)


def look(out: Path) -> None:
    """Write down what there is. Collects nothing: what waits for the collector is left as well."""
    objects = sum(isinstance(each, OF_A_STREAM) for each in gc.get_objects())
    fresh = out.with_suffix(".fresh")
    fresh.write_text(json.dumps({"tasks": len(asyncio.all_tasks()), "objects": objects}))
    fresh.rename(out)


def main() -> None:
    """Run the command that the rest of the command line names."""
    out, sys.argv = Path(sys.argv[1]), ["sidecar", *sys.argv[2:]]
    signal.signal(signal.SIGUSR1, lambda *_: look(out))
    sidecar()


if __name__ == "__main__":
    main()
