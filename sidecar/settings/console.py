"""Settings of the web console."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field
from pydantic.functional_validators import AfterValidator

from sidecar.settings.field_types import ClaimName, Many, Origin, PathField, Scope, Seconds, Section, Word, https_url
from sidecar.settings.identity import Algorithm
from sidecar.settings.validation_errors import Finding

MAX_SESSION_S = 8 * 3600.0
ConsoleOrigin = Annotated[Origin, https_url("browsers reach the console over https", "write https://{rest}")]
IssuerUrl = Annotated[
    str,
    https_url("people are sent to an identity provider over https only"),
    AfterValidator(lambda text: text.rstrip("/")),
]


class OidcRoles(Section):
    """What a person may do, by a claim of the ID token."""

    claim: ClaimName = "groups"
    """The claim with a string or a list of strings; dots walk into objects (realm_access.roles)."""
    viewer: Many[Word] = ()
    """Values that grant the role viewer, `*` matching any run of characters."""
    operator: Many[Word] = ()
    """Values that grant the role operator."""

    def _faults(self) -> Iterator[Finding]:
        if not (self.viewer or self.operator):
            hint = "write operator: [platform-team]"
            yield Finding("no value of the claim lets anybody in", "S196", hint, at=("claim",))


class OidcSettings(Section):
    """An OpenID provider at which people log in: authorization code with PKCE. Its redirect address for the console is
    `<url>/console/oidc/callback`."""

    issuer: IssuerUrl
    """The provider, as its ID tokens name it: https://idp.acme.example/realms/acme. If `identity.issuers` has it too,
    a person who logs in is the same principal as in calls, and answers approvals."""
    client_id: Word
    """The console's client id at the provider."""
    client_secret_path: PathField | None = None
    """File with the client's secret; without one the client is public."""
    scopes: Many[Scope] = ("openid", "profile")
    """The scopes to request; `openid` is always requested."""
    algorithms: Annotated[Many[Algorithm], Field(min_length=1)] = ("RS256",)
    """Algorithms of its signatures."""
    name_claim: ClaimName = "sub"
    """The claim that names a person in audit records: `sub`, `email`, `preferred_username`."""
    roles: OidcRoles


class ConsoleSettings(Section):
    """The web console, at `/console` of the admin listener."""

    enabled: bool = False
    """Whether the console is served. A login needs `oidc`, or one of `admin.credentials` as `viewer` or `operator`."""
    url: ConsoleOrigin | None = None
    """The origin under which browsers reach the admin listener, where a proxy is in front: https://ops.acme.example.
    Needed where the listener is beyond loopback."""
    session: Annotated[Seconds, Field(le=MAX_SESSION_S)] = 900.0
    """Idle time after which a login ends. Every login ends after 8 hours."""
    oidc: OidcSettings | None = None
    """An OpenID provider at which people log in with their own accounts."""
