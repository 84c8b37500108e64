"""Checks of the console with a real browser: `make console-check`.

scene           a sidecar process with servers, agents, policy and traffic
browser         headless Chromium, and what it notices: errors, blocked sources, findings of axe-core
check_console   every page, in both colour schemes and at a phone's width
"""
