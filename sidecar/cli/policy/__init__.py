"""`sidecar policy`: checks, tests and compares policies before they are used. One file per command."""
