"""Fixed addresses of the console."""

from typing import Final

BASE: Final = "/console/"
LOGIN, LOGOUT, FIRST = f"{BASE}login", f"{BASE}logout", f"{BASE}now"
OIDC_BEGIN, OIDC_FINISH = f"{BASE}oidc/login", f"{BASE}oidc/callback"
STATIC: Final = f"{BASE}static/"
