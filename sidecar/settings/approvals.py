"""Settings of approvals: how long callers wait for a person, how many calls may wait, and who is notified."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from sidecar.settings.field_types import HttpUrl, Many, PathField, Seconds, Section
from sidecar.settings.secrets import read_secret
from sidecar.settings.validation_errors import Finding

MAX_HOLD_S = 600.0
MAX_RECEIVERS = 16


class ApprovalReceiver(Section):
    """A webhook that receives a notice of each request for approval, and of its answer. `callbacks.allow` must name its
    host."""

    url: HttpUrl | None = None
    """URL of the webhook."""
    url_path: PathField | None = None
    """File with the URL of the webhook, if the URL is a secret, as for Slack."""
    format: Literal["json", "slack"] = "json"
    """`json` is the sidecar's own document. `slack` is a message that Slack, Mattermost and Rocket.Chat can show.
    Neither contains the arguments of the call."""

    def address(self) -> str:
        """The URL of the webhook. Raises SettingsError for a file that cannot be used."""
        return self.url or ("" if self.url_path is None else read_secret(self.url_path, "theirs"))

    def _faults(self) -> Iterator[Finding]:
        if (self.url is None) == (self.url_path is None):
            yield Finding("set exactly one of url and url_path", "S197", "write the address in one of them")


class ApprovalSettings(Section):
    """Calls that wait for a person's approval (`approval=` in a rule)."""

    hold: Annotated[Seconds, Field(ge=0.0, le=MAX_HOLD_S)] = 60.0
    """Maximum time that a call of a session is held for the answer. After that, it is refused as `approval-pending`."""
    page: HttpUrl | None = None
    """URL of the page on which people answer; the sidecar appends the id of the request. Default: the page of the
    console, if `admin.console.url` is set."""
    notify: Annotated[Many[ApprovalReceiver], Field(max_length=MAX_RECEIVERS)] = ()
    """Webhooks that receive a notice when an approval is requested, given, refused or withdrawn, or expires."""
    max_per_principal: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Maximum number of stored approvals of one principal. Beyond it, further calls that need an approval are
    refused."""
    max: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Maximum number of stored approvals in total."""
