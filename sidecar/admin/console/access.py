"""Identifies the users of the console: by a credential in a header, or by the cookie of a session.

A cookie is valid only below `/console`. A request that changes state must come from a page of the console: `Origin`, or
`Sec-Fetch-Site` if the browser sends no `Origin`, must name it, and the form must have the CSRF token of the session.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from sidecar.admin.admin_app import OperatorSecrets, credential_of, name_of, person_of
from sidecar.admin.console.form_fields import FormFields
from sidecar.admin.console.request import ConsoleFault
from sidecar.admin.console.sessions import ConsoleSession, ConsoleSessions
from sidecar.vocabulary import Principal

if TYPE_CHECKING:
    from sidecar.admin.routes import Role
    from sidecar.gateway.routing import Headers
    from sidecar.settings.server import AdminCredential

CSRF_FIELD, CSRF_HEADER = "csrf", "x-csrf-token"
FLOW_S: Final = 600
"""The longest time for a login at the OpenID provider."""
MAX_COOKIES: Final = 8 * 1024
SEEN: Final[tuple[Role, ...]] = ("viewer", "operator")


class ConsoleUser(NamedTuple):
    """A user of the console. `by` is the name in audit records, `person` the person, if the credential names one.
    `session` is None for a credential in a header."""

    by: str
    role: Role
    session: ConsoleSession | None = None
    person: Principal | None = None


@dataclass(frozen=True, slots=True)
class ConsoleAccess:
    """The credentials in force, and the sessions. `cookie` is the name of the cookie of sessions. `is_secure`: browsers
    reach the console over TLS."""

    secrets: OperatorSecrets
    sessions: ConsoleSessions
    cookie: str
    is_secure: bool

    def credential(self, given: str) -> AdminCredential | None:
        """The credential with this secret, if its role may use the console; otherwise None."""
        found = credential_of(given, self.secrets())
        return found if found is not None and found.role in SEEN else None

    async def user(self, headers: Headers, *, touch: bool = True) -> ConsoleUser | None:
        """The user of a request; None if it has no valid credential or session. With a credential in a header, the
        cookie is ignored. `touch` restarts the idle time of the session."""
        if lines := headers.get("authorization", ()):
            scheme, _, given = lines[0].partition(" ")
            credential = self.credential(given) if len(lines) == 1 and scheme == "Bearer" else None
            return (
                None
                if credential is None
                else ConsoleUser(name_of(credential), credential.role, None, person_of(credential))
            )
        session_id = self.session_id(headers)
        session = await self.sessions.find(session_id, touch=touch) if session_id else None
        return None if session is None else ConsoleUser(session.by, session.role, session, session.person)

    def session_id(self, headers: Headers) -> str:
        return cookie_in(headers, self.cookie)

    def flow_id(self, headers: Headers) -> str:
        """The value of the cookie of a login in progress at the OpenID provider; "" without one."""
        return cookie_in(headers, f"{self.cookie}-login")

    def flow_cookie_for(self, flow_id: str) -> str:
        """The `Set-Cookie` of a login in progress. It cannot be SameSite=Strict, because the provider's site redirects
        to the console. "" removes the cookie."""
        name, secure = f"{self.cookie}-login", self.is_secure
        return set_cookie(name, flow_id, is_secure=secure, same_site="Lax", max_age_s=FLOW_S)

    def cookie_for(self, session_id: str) -> str:
        """The `Set-Cookie` of a session. "" removes the cookie."""
        return set_cookie(self.cookie, session_id, is_secure=self.is_secure)


def cookie_in(headers: Headers, name: str) -> str:
    """The value of a cookie; "" if it is missing, sent twice, or in headers that are too long or sent twice."""
    lines = headers.get("cookie", ())
    if len(lines) != 1 or len(lines[0]) > MAX_COOKIES:
        return ""
    found = [value for key, _, value in (part.strip().partition("=") for part in lines[0].split(";")) if key == name]
    return found[0] if len(found) == 1 else ""


def set_cookie(
    name: str, value: str, *, is_secure: bool, same_site: str = "Strict", max_age_s: int | None = None
) -> str:
    """A `Set-Cookie` for addresses of the console only. An empty value removes the cookie."""
    age = "; Max-Age=0" if not value else "" if max_age_s is None else f"; Max-Age={max_age_s}"
    secure = "; Secure" if is_secure else ""
    return f"{name}={value}; Path=/console; HttpOnly; SameSite={same_site}{age}{secure}"


def check_own_page(headers: Headers) -> None:
    """Checks that a page of the console sent a form. If there is an `Origin`, `check_envelope` has checked it. Raises
    ConsoleFault."""
    if "origin" not in headers and headers.get("sec-fetch-site", ()) != ("same-origin",):
        raise ConsoleFault(403, "this form was not sent by a page of the console")


def check_token(session: ConsoleSession, headers: Headers, form: FormFields) -> None:
    """Checks the CSRF token of a form. Raises ConsoleFault."""
    given = form.get(CSRF_FIELD, "") or "".join(headers.get(CSRF_HEADER, ())[:1])
    if not hmac.compare_digest(given.encode(), session.csrf.encode()):
        raise ConsoleFault(403, "this form is not of your session: load the page again")
