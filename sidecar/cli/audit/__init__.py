"""`sidecar audit`: verifies and shows audit records. One file per command."""
