"""`python -m sidecar` is `sidecar`."""

from sidecar.cli import main

if __name__ == "__main__":
    main()
