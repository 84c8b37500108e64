"""The settings of approvals: how long callers wait for a person, how many calls may wait, and who is told of them."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from sidecar.settings.field_types import HttpUrl, Many, PathField, Seconds, Section
from sidecar.settings.secrets import read_secret
from sidecar.settings.validation_errors import Finding

MAX_HOLD_S = 600.0
MAX_RECEIVERS = 16


class ApprovalReceiver(Section):
    """A webhook that gets a notice of each request for approval, and of its answer. `callbacks.allow` must name its
    host."""

    url: HttpUrl | None = None
    """Its address."""
    url_path: PathField | None = None
    """File with its address, for one that is a secret, as those of Slack are."""
    format: Literal["json", "slack"] = "json"
    """`json` is the sidecar's own document; `slack` a message that Slack, Mattermost and Rocket.Chat show. Neither has
    the arguments of the call."""

    def address(self) -> str:
        """Raises SettingsError for a file that cannot be used."""
        return self.url or ("" if self.url_path is None else read_secret(self.url_path, "theirs"))

    def _faults(self) -> Iterator[Finding]:
        if (self.url is None) == (self.url_path is None):
            yield Finding("a receiver has exactly one of url and url_path", "S197", "write its address in one of them")


class ApprovalSettings(Section):
    """Calls that wait for a person's approval (`approval=` in policy)."""

    hold: Annotated[Seconds, Field(ge=0.0, le=MAX_HOLD_S)] = 60.0
    """How long a call of a session is held for the answer before it is refused as `approval-pending`."""
    page: HttpUrl | None = None
    """The address at which people answer, before the id of a request. By default that of the console, if
    `admin.console.url` is set."""
    notify: Annotated[Many[ApprovalReceiver], Field(max_length=MAX_RECEIVERS)] = ()
    """Webhooks that get a notice when an approval is requested, given, refused or withdrawn, or expires."""
    max_per_principal: Annotated[int, Field(ge=1, le=10_000)] = 100
    """How many approvals of one principal may be stored. Beyond that its further calls are refused."""
    max: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """How many may be stored in total."""
