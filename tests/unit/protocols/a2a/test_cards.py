"""Does a card of ours say the truth, name nobody else's address, and please clients of both versions?

`UPDATE_GOLDEN=1 pytest tests/unit/protocols/a2a/test_cards.py` writes `tests/golden/cards.json` anew; read the diff.
"""

import json
import os
import subprocess
import time
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any

import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.utils.signing import create_signature_verifier
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings, strategies as st
from jwt import PyJWK
from jwt.algorithms import get_default_algorithms

from sidecar.http import signing_keys
from sidecar.protocols.a2a import cards, cards03
from sidecar.protocols.a2a.messages import V10
from sidecar.protocols.a2a.operations import CARD
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.a2a.v03 import JSON_FORM, PROTO_FORM
from sidecar.protocols.a2a.wire import WIRES
from tests import wire
from tests.tables import tables
from tests.unit.protocols.a2a.test_schema import of, whole

TABLES = tables("protocols/a2a/cards")

ROOT = Path(__file__).parents[4]
GOLDEN = ROOT / "tests" / "golden" / "cards.json"
HOST = "planner.internal"
OURS = "https://gw.acme.example"
STRANGERS = ("planner.internal", "planner-rpc", '"10.0.0.3', "at=10.0.0.3", "fd00", "odd.int", ":9000", "50051", "c2ln")
INTERFACES = (
    cards.Interface(f"{OURS}/agents/planner/", "jsonrpc", "0.3"),
    cards.Interface(f"{OURS}/agents/planner/", "jsonrpc", "1.0"),
    cards.Interface(f"{OURS}/agents/planner", "http_json", "1.0"),
    cards.Interface("gw.acme.example:8081", "grpc", "1.0", tenant="planner"),
    cards.Interface(f"{OURS}/agents/planner", "http_json", "0.3"),
)

CARDS = wire.table("cards")
GIVEN = {name: CARDS[name] for name in ("of 0.3", "of 1.0", "with little")}
OLD, NEW, LEAST = GIVEN.values()
WRITERS = {
    "everybody": lambda card: cards.document(card),
    "the original form": cards.seed_card,
    "0.3 over JSON-RPC": lambda card: JSON_FORM.write_result(CARD, card),
    "0.3 over gRPC": lambda card: PROTO_FORM.write_result(CARD, card),
}


def ours(given: Any, **changed: Any) -> dict[str, Any]:
    chosen = {"interfaces": INTERFACES, "may_use": lambda skill: True, "agent_url": f"http://{HOST}:9000"}
    return cards.ours(cards.read(given), **{**chosen, "has_extended": True, **changed})


# --- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GIVEN)
def test_a_card_of_ours_is_the_golden_one(name: str) -> None:
    """BL-088: of an agent below a path, with our own address in its card, with several interfaces, of each format."""
    written = {writer: write(ours(GIVEN[name])) for writer, write in WRITERS.items()}
    golden = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    if os.environ.get("UPDATE_GOLDEN"):
        golden[name] = written
        GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert golden[name] == written


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("writer", WRITERS)
def test_no_address_in_it_is_the_agents(name: str, writer: str) -> None:
    """BL-088: no internal name leaks."""
    text = json.dumps(WRITERS[writer](ours(GIVEN[name])), ensure_ascii=False).lower()
    assert [stranger for stranger in STRANGERS if stranger in text] == []
    if name == "of 1.0" and writer != "the original form":
        assert "110.0.0.3" in text  # another host, whose name ends alike


def test_both_lines_of_the_official_sdk_read_what_we_write() -> None:
    documents = {name: cards.document(ours(given)) for name, given in GIVEN.items()}
    for name, document in documents.items():
        read = MessageToDict(parse_agent_card(json.loads(json.dumps(document))))
        assert whole(read) == whole(ours(GIVEN[name]))
    for name, seen in read_by_03(documents).items():
        assert whole(seen["card"]) == whole(cards03.to_json(ours(GIVEN[name])))


def read_by_03(documents: dict[str, Any]) -> Any:
    """What the last SDK of the 0.3 line makes of our cards, and what it would verify the signature of."""
    program = (
        "import json, sys\n"
        "from a2a.types import AgentCard\n"
        "from a2a.utils.helpers import canonicalize_agent_card as signed\n"
        "read = {name: AgentCard.model_validate(given) for name, given in json.load(sys.stdin).items()}\n"
        "print(json.dumps({name: {'card': card.model_dump(mode='json', by_alias=True, exclude_none=True,\n"
        "    exclude={'signatures'}), 'signed': signed(card)} for name, card in read.items()}))\n"
    )
    python = ROOT / ".venv-a2a03" / "bin" / "python"
    if not python.exists():
        pytest.skip("the 0.3 line of the official SDK is not installed")
    command, said = [python, "-c", program], json.dumps(documents)
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)


@settings(max_examples=8)
@given(data=st.data())
def test_of_every_card_that_is_read_all_forms_can_be_written(data: st.DataObject) -> None:
    drawn = V10.read("AgentCard", data.draw(of(V10, "AgentCard")))
    card = ours(
        {"capabilities": {}, "supportedInterfaces": [], **drawn, "name": "n", "version": "1", "skills": OLD["skills"]}
    )
    json.dumps([write(card) for write in WRITERS.values()])
    assert WIRES["1.0"].encode("AgentCard", card)
    assert WIRES["0.3"].encode("AgentCard", cards03.to_proto(card))


def test_skills_are_those_of_the_caller_who_is_told_what_we_want_and_not_what_the_agent_wants() -> None:
    card = ours(OLD, may_use=lambda skill: skill == "book")
    for document in (card, cards.document(card), cards.seed_card(card), cards03.to_json(card), cards03.to_proto(card)):
        assert [skill["id"] for skill in document["skills"]] == ["book"]
    document = cards.document(ours(OLD))
    assert list(document["securitySchemes"]) == ["bearer"] and document["security"] == [{"bearer": []}]
    assert "security" not in document["skills"][1]
    assert cards.seed_card(ours(OLD))["authentication"] == {"schemes": ["bearer"]}


def test_a_version_that_we_do_not_offer_is_not_in_the_card() -> None:
    document = cards.document(ours(OLD, interfaces=INTERFACES[1:4]))
    assert not {"url", "preferredTransport", "protocolVersion", "additionalInterfaces", "security"} & document.keys()
    with pytest.raises(UnreadableMessage):
        cards03.to_json(ours(OLD, interfaces=INTERFACES[1:4]))


def test_the_extended_card_of_an_agent_of_0_3_is_read_like_any_other() -> None:
    assert JSON_FORM.read_result(CARD, OLD) == cards.read(OLD)
    sent = PROTO_FORM.write_result(CARD, cards.read(OLD))
    assert PROTO_FORM.read_result(CARD, sent)["skills"] == cards.read(OLD)["skills"]


# --- signatures -------------------------------------------------------------------------------------------------------


def signer(key: signing_keys.SigningKey) -> cards.CardSigner:
    algorithm = get_default_algorithms()[key.algorithm]
    return cards.CardSigner(key.algorithm, key.kid, lambda data: algorithm.sign(data, key.private))


@pytest.mark.parametrize("name", GIVEN)
def test_our_signature_is_verified_by_the_official_sdk(name: str) -> None:
    key = signing_keys.generate()
    document = cards.document(ours(GIVEN[name]), signer(key))
    verify = create_signature_verifier(lambda kid, jku: PyJWK(dict(key.public_jwk)), [key.algorithm])
    verify(parse_agent_card(json.loads(json.dumps(document))))
    card = V10.read("AgentCard", cards.signed(ours(GIVEN[name]), signer(key)))
    verify(parse_agent_card(card))
    header = json.loads(unpadded(document["signatures"][0]["protected"]))
    assert header == {"alg": key.algorithm, "kid": key.kid, "typ": "JOSE"}


def test_the_older_line_verifies_its_own_members() -> None:
    given = {name: card for name, card in GIVEN.items() if name != "of 1.0"}  # there it escapes what is not ASCII
    covered: list[bytes] = []
    recording = cards.CardSigner("ES256", "k", lambda data: covered.append(data) or b"")
    documents = {name: cards.document(ours(card), recording) for name, card in given.items()}
    seen = read_by_03(documents)
    signed = [unpadded(data.decode().split(".")[1]).decode() for data in covered[1::2]]
    assert signed == [seen[name]["signed"] for name in given]


def unpadded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        *TABLES["wrong_cards"],
        ({"capabilities": {"extensions": [{"uri": "a"}] * 101}}, "/capabilities/extensions"),
        ({"supportedInterfaces": [{"url": "a"}] * 21}, "/supportedInterfaces"),
        ({"skills": [{"id": str(one)} for one in range(1001)]}, "/skills"),
    ],
)
@pytest.mark.parametrize("given", [OLD, NEW], ids=["0.3", "1.0"])
def test_a_card_that_we_cannot_trust_is_refused(given: Any, changed: Any, where: str) -> None:
    without = {name: value for name, value in given.items() if name != "securitySchemes"}
    with pytest.raises(UnreadableMessage) as caught:
        cards.read({**without, **changed})
    assert caught.value.pointer == where


@pytest.mark.parametrize("given", [None, [], "card", {}, {"supportedInterfaces": {}}, {"supportedInterfaces": [1]}])
def test_what_is_no_card_is_refused(given: Any) -> None:
    with pytest.raises(UnreadableMessage):
        cards.read(given)


@pytest.mark.parametrize(("text", "names"), TABLES["names_a_host"])
def test_a_host_that_is_a_plain_word_is_only_found_as_an_address(text: str, names: bool) -> None:
    card = ours({**LEAST, "description": text}, agent_url="http://planner:9000")
    assert (card["description"] != text) is names


@pytest.mark.parametrize(("text", "names"), TABLES["names_us"])
def test_on_a_host_that_is_ours_too_the_port_is_the_agents(text: str, names: bool) -> None:
    here = (cards.Interface("http://127.0.0.1:8080/agents/planner/", "jsonrpc", "1.0"),)
    given_ = {**LEAST, "url": "http://127.0.0.1:9000/a2a", "description": text, "documentationUrl": text}
    card = ours(given_, interfaces=here, agent_url="http://127.0.0.1:9000")
    assert (card["description"] != text) is names
    assert ("documentationUrl" in card) is (text.startswith("http") and not names)


def test_a_text_that_is_made_to_take_long_does_not() -> None:
    texts = ["a" * 300_000, "a.-+" * 70_000, "a://" * 70_000, "a%3a%2f%2f" * 30_000, "x://" + "a:" * 100_000]
    texts.append(f"http://{HOST}/" + "a" * 200_000)
    many = [{"url": f"http://{'a' * one}.example:{one}"} for one in range(1, 19)]
    began = time.process_time()
    ours({**LEAST, "description": " ".join(texts), "documentationUrl": texts[2], "additionalInterfaces": many})
    assert time.process_time() - began < 5  # what grows with the square takes minutes


@pytest.mark.parametrize(
    "url", ["", "http://", "http://[", "//acme.example", "ftp://acme.example", f"http://a@{HOST}/", "http:///x"]
)
def test_an_address_to_look_at_is_one_of_the_web_and_not_the_agents(url: str) -> None:
    card = ours({**LEAST, "documentationUrl": url, "iconUrl": url, "provider": {"organization": "o", "url": url}})
    assert not {"documentationUrl", "iconUrl", "provider"} & card.keys()
