"""The composition root: builds a sidecar from its settings, reloads it, and runs its background jobs."""
