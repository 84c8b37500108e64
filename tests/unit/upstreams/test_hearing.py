"""What does a subscriber hear of what a server says, whatever that is?"""

from sidecar.protocols.jsonrpc import Notification
from sidecar.upstreams.mcp.bridge.unsolicited import Subscription
from sidecar.upstreams.mcp.transport import UPDATED

ODD = (None, 1, 1.5, True, [], ["file:///a"], {}, {"file:///a": 1}, "file:///b")


def heard(subscription: Subscription) -> int:
    return subscription.pipe._size


def test_an_update_of_no_uri_is_overlooked_and_the_next_one_is_heard() -> None:
    subscription = Subscription(1, uris=frozenset({"file:///a"}))
    subscription.acknowledge()
    before = heard(subscription)
    for uri in ODD:
        subscription.hear(Notification(UPDATED, {"uri": uri}))
        assert heard(subscription) == before, uri
    subscription.hear(Notification(UPDATED, {"uri": "file:///a"}))
    assert heard(subscription) > before
