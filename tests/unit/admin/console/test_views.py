"""What a live view is told of the data that its page shows."""

from sidecar.admin.console.request import digest_of_view


def test_views_that_differ_have_digests_that_differ() -> None:
    assert digest_of_view({"rows": [1]}) == digest_of_view({"rows": [1]}) != digest_of_view({"rows": [2]})
    assert digest_of_view({"workers": {1: "ready"}}) != ""


def test_a_text_that_is_no_unicode_ends_no_page() -> None:
    assert digest_of_view({"file": "\udcff.csv"}) == ""
