"""The console's own addresses."""

from typing import Final

BASE: Final = "/console/"
LOGIN, LOGOUT, FIRST = f"{BASE}login", f"{BASE}logout", f"{BASE}now"
STATIC: Final = f"{BASE}static/"
