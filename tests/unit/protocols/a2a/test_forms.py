"""What does not cross between versions and bindings, because somebody would be misled?"""

from typing import Any, get_args

import pytest

from sidecar.gateway.frontends.a2a.response_writers import details_of
from sidecar.protocols.a2a.errors import ERROR_INFO, AgentError
from sidecar.protocols.a2a.forms import FORMS
from sidecar.protocols.a2a.operations import GET, LIST, Binding
from sidecar.protocols.a2a.schema import UnreadableMessage

OURS: dict[str, Any] = {"@type": ERROR_INFO, "reason": "DENIED_BY_RULE", "domain": "sidecar", "metadata": {}}
THEIRS: dict[str, Any] = {"@type": ERROR_INFO, "reason": "BUSY", "domain": "agent.example", "metadata": {}}


@pytest.mark.parametrize("binding", get_args(Binding))
def test_an_agent_of_0_3_is_not_called_below_a_tenant(binding: Binding) -> None:
    """Rules saw the tenant, and the agent would not: what it does would be done for anybody's."""
    for operation, params in ((GET, {"id": "t1"}), (LIST, {})):
        assert "tenant" not in FORMS["0.3", binding].write_params(operation, {**params, "tenant": ""})
        with pytest.raises(UnreadableMessage, match="tenant"):
            FORMS["0.3", binding].write_params(operation, {**params, "tenant": "acme"})
        assert FORMS["1.0", binding].write_params(operation, {**params, "tenant": "acme"})["tenant"] == "acme"


def test_an_agent_does_not_speak_in_our_name() -> None:
    assert details_of(AgentError(-32603, "no", (OURS, THEIRS))) == [THEIRS]
    (instead,) = details_of(AgentError(-32603, "no", (OURS,)))
    assert (instead["reason"], instead["domain"]) == ("INTERNAL_ERROR", "a2a-protocol.org")
