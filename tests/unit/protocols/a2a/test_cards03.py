"""Is a card of A2A 0.3 read and written as the official compatibility layer does it?"""

from typing import Any

import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as pb2_03, conversions as sdk, types as sdk_03
from a2a.compat.v0_3.proto_utils import FromProto, ToProto
from a2a.types import a2a_pb2
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import given, settings, strategies as st

from sidecar.protocols.a2a import cards03
from sidecar.protocols.a2a.messages import PROTO03, V10
from sidecar.protocols.a2a.schema import UnreadableMessage
from tests import wire
from tests.unit.protocols.a2a.test_schema import of, whole

JUDGED = settings(max_examples=8)


def with_schemes(card: dict[str, Any]) -> dict[str, Any]:
    """With places for keys, and schemes that are some."""
    for scheme in card.get("securitySchemes", {}).values():
        if not scheme:
            scheme["mtlsSecurityScheme"] = {}
        if "apiKeySecurityScheme" in scheme:
            scheme["apiKeySecurityScheme"]["location"] = "header"
    return card


def with_0_3(card: dict[str, Any]) -> dict[str, Any]:
    """With an interface of 0.3, too."""
    interfaces = [{"url": "http://a", "protocolVersion": "0.3"}, *card.get("supportedInterfaces", ())]
    for one in interfaces[1:]:
        one["protocolVersion"] = "1.0" if len(one.get("url", "")) % 2 else "0.3"
    return {**with_schemes(card), "supportedInterfaces": interfaces}


@JUDGED
@given(data=st.data())
def test_a_card_is_written_and_read_again_as_the_official_layer_does_it(data: st.DataObject) -> None:
    card = with_0_3(V10.read("AgentCard", data.draw(of(V10, "AgentCard"))))
    theirs = sdk.to_compat_agent_card(ParseDict(card, a2a_pb2.AgentCard()))
    written = theirs.model_dump(mode="json", by_alias=True, exclude_none=True)
    ours = cards03.to_json(card)
    assert whole(ours) == whole(written)
    again = MessageToDict(sdk.to_core_agent_card(sdk_03.AgentCard.model_validate(ours)))
    assert whole(cards03.from_json(ours)) == whole(again)


@JUDGED
@given(data=st.data())
def test_a_card_of_the_protocol_buffers_is_read_as_the_official_layer_reads_it(data: st.DataObject) -> None:
    card = with_schemes(PROTO03.read("AgentCard", data.draw(of(PROTO03, "AgentCard"))))
    for scheme in card.get("securitySchemes", {}).values():
        if scheme.pop("oauth2SecurityScheme", None) is not None:  # read flow by flow, below
            scheme["mtlsSecurityScheme"] = {}
    message = ParseDict(card, pb2_03.AgentCard())
    theirs = MessageToDict(sdk.to_core_agent_card(FromProto.agent_card(message)))
    assert whole(cards03.from_proto(card)) == whole(theirs)


@JUDGED
@given(data=st.data())
def test_a_card_of_the_protocol_buffers_is_written_as_the_official_layer_writes_it(data: st.DataObject) -> None:
    card = with_0_3(V10.read("AgentCard", data.draw(of(V10, "AgentCard"))))
    for scheme in card.get("securitySchemes", {}).values():
        if "oauth2SecurityScheme" in scheme:  # the official layer raises for one without a flow
            scheme["oauth2SecurityScheme"]["flows"] = {"implicit": {"authorizationUrl": "u"}}
    theirs = MessageToDict(ToProto.agent_card(sdk.to_compat_agent_card(ParseDict(card, a2a_pb2.AgentCard()))))
    ours = PROTO03.read("AgentCard", cards03.to_proto(card))
    assert whole(without_params(ours)) == whole(without_params(theirs))


def without_params(card: dict[str, Any]) -> dict[str, Any]:
    """Parameters of an extension that are empty are there, or are not."""
    for extension in card.get("capabilities", {}).get("extensions", ()):
        if not extension.get("params"):
            extension.pop("params", None)
    return card


CARD: dict[str, Any] = {"name": "n", "version": "1", "url": "http://a", "capabilities": {}, "skills": []}


@pytest.mark.parametrize(("changed", "where"), wire.table("a2a_wrong")["card of 0.3"])
def test_a_wrong_card_is_told_with_its_place(changed: dict[str, Any], where: str) -> None:
    with pytest.raises(UnreadableMessage) as caught:
        cards03.from_json({**CARD, **changed})
    assert caught.value.pointer == where


def test_of_several_flows_one_goes_on() -> None:
    flows = {"password": {"tokenUrl": "t", "scopes": {}}, "implicit": {"authorizationUrl": "a", "scopes": {"s": "x"}}}
    card = {**CARD, "securitySchemes": {"o": {"type": "oauth2", "flows": flows}}}
    assert cards03.from_json(card)["securitySchemes"] == {
        "o": {"oauth2SecurityScheme": {"flows": {"password": {"tokenUrl": "t"}}}}
    }


def test_a_card_without_an_interface_of_0_3_is_not_one() -> None:
    with pytest.raises(UnreadableMessage) as caught:
        cards03.to_json({"name": "n", "supportedInterfaces": [{"url": "u", "protocolVersion": "1.0"}]})
    assert caught.value.pointer == "/supportedInterfaces"
