"""`sidecar agent`: checks, runs and inspects CLI programs that are agents."""
