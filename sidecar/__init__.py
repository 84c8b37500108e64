"""sidecar: a policy-as-code authorization proxy beside AI agents."""

__version__ = "0.1.0"
