"""The policy enforcement point: one pipeline that every request passes, and the frontends that speak each protocol."""
