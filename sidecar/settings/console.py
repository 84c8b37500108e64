"""Settings of the web console."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field
from pydantic.functional_validators import AfterValidator

from sidecar.settings.field_types import ClaimName, Many, Origin, PathField, Scope, Seconds, Section, Word, https_url
from sidecar.settings.identity import Algorithm
from sidecar.settings.validation_errors import Finding

MAX_SESSION_S = 8 * 3600.0
ConsoleOrigin = Annotated[Origin, https_url("the console needs an https URL", "write https://{rest}")]
IssuerUrl = Annotated[
    str, https_url("an identity provider needs an https URL"), AfterValidator(lambda text: text.rstrip("/"))
]


class OidcRoles(Section):
    """The roles of people, from a claim of the ID token."""

    claim: ClaimName = "groups"
    """Claim that holds a string or a list of strings. Dots select members of objects: `realm_access.roles`."""
    viewer: Many[Word] = ()
    """Values that grant the role `viewer`. `*` matches any run of characters."""
    operator: Many[Word] = ()
    """Values that grant the role `operator`. `*` matches any run of characters."""

    def _faults(self) -> Iterator[Finding]:
        if not (self.viewer or self.operator):
            hint = "write operator: [platform-team]"
            yield Finding("no value of the claim grants a role", "S196", hint, at=("claim",))


class OidcSettings(Section):
    """An OpenID provider at which people log in, with authorization code and PKCE. The redirect address of the console
    is `<url>/console/oidc/callback`."""

    issuer: IssuerUrl
    """URL of the provider, as in its ID tokens: `https://idp.acme.example/realms/acme`. If `identity.issuers` has it
    too, a person who logs in is the same principal as in calls, and can answer approvals."""
    client_id: Word
    """Client id of the console at the provider."""
    client_secret_path: PathField | None = None
    """File with the client secret. Without it, the client is public."""
    scopes: Many[Scope] = ("openid", "profile")
    """Scopes to request. `openid` is always requested."""
    algorithms: Annotated[Many[Algorithm], Field(min_length=1)] = ("RS256",)
    """Accepted signature algorithms."""
    name_claim: ClaimName = "sub"
    """Claim that names a person in audit records, such as `sub`, `email` or `preferred_username`."""
    roles: OidcRoles


class ConsoleSettings(Section):
    """The web console, at `/console` of the admin listener."""

    enabled: bool = False
    """Whether to serve the console. A login requires `oidc`, or an entry of `admin.credentials` with the role `viewer`
    or `operator`."""
    url: ConsoleOrigin | None = None
    """Origin at which browsers reach the admin listener if a proxy is in front: `https://ops.acme.example`. Required
    beyond loopback."""
    session: Annotated[Seconds, Field(le=MAX_SESSION_S)] = 900.0
    """Idle time after which a login ends. Every login ends after 8 hours."""
    oidc: OidcSettings | None = None
    """OpenID provider at which people log in with their own accounts."""
