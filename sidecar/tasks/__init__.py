"""Work that continues after its request: the task API, CLI programs as agents, schedules and webhooks."""
