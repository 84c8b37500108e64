"""What a page is given: fields within bounds, rows of one page, and results that several viewers share."""

import asyncio
import gc

import pytest

from sidecar.admin.console.form_fields import FormFields
from sidecar.admin.console.request import MAX_SHARED, Paging, SharedResults, matches, paged
from sidecar.errors import Refusal


async def test_viewers_share_one_making_even_if_it_takes_longer_than_its_result_holds() -> None:
    results, made, go = SharedResults(), 0, asyncio.Event()

    async def make() -> int:
        nonlocal made
        made += 1
        await go.wait()
        return made

    waiting = [asyncio.create_task(results.get("key", 0.0, make)) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # one leaves
    await asyncio.sleep(0.01)
    go.set()
    assert await asyncio.gather(*waiting[1:]) == [1] * 4
    assert await results.get("key", 60.0, make) == 1
    assert await results.get("key", 0.0, make) == 2
    assert await results.get("other", 60.0, make) == 3
    for number in range(MAX_SHARED):
        await results.get(number, 60.0, make)
    assert await results.get("key", 60.0, make) == MAX_SHARED + 4  # the oldest gave way


async def test_an_order_makes_every_result_be_made_again_also_one_that_is_being_made() -> None:
    results, shown, begun, go = SharedResults(), "waiting", asyncio.Event(), asyncio.Event()

    async def make() -> str:
        found = shown
        begun.set()
        await go.wait()
        return found

    viewer = asyncio.create_task(results.get("key", 60.0, make))
    await begun.wait()
    shown = "approved"
    results.forget()
    go.set()
    assert await viewer == "approved"
    shown = "used"
    assert await results.get("key", 60.0, make) == "approved"
    results.forget()
    assert await results.get("key", 60.0, make) == "used"


async def test_an_error_is_every_viewers_own_and_of_nobody_if_all_have_left(caplog: pytest.LogCaptureFixture) -> None:
    results, go = SharedResults(), asyncio.Event()

    async def fail() -> None:
        await go.wait()
        raise ValueError("no")

    first = asyncio.create_task(results.get("key", 60.0, fail))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    await asyncio.sleep(0.01)
    with pytest.raises(ValueError, match="no"):
        await results.get("key", 60.0, fail)
    results._made.clear()
    gc.collect()
    assert caplog.text == ""


def test_fields_are_read_within_their_bounds() -> None:
    fields = FormFields.parsed("a=1&a=2&b=+x+&empty=&n=7")
    assert (fields["a"], fields.all("a"), fields.text("b"), fields.number("n", 1, least=1, most=9)) == (
        *("2", ["1", "2"]),
        *("x", 7),
    )
    assert fields.with_changes({"n": None, "b": "y z"}) == "a=2&b=y+z"
    assert fields.number("missing", 5, least=1, most=9) == 5 and fields.choice("missing", ("x",), "x") == "x"
    for wrong in (
        lambda: fields.number("n", 1, least=1, most=6),
        lambda: FormFields.parsed("n=-1").number("n", 1, least=1, most=6),
        lambda: FormFields.parsed("n=%D9%A3").number("n", 1, least=1, most=6),
        lambda: FormFields.parsed("t=" + "x" * 513).text("t"),
        lambda: FormFields.parsed("t=a%0Ab").text("t"),
        lambda: fields.choice("b", ("y",)),
        lambda: FormFields.parsed("&".join(f"a{n}=1" for n in range(201))),
        lambda: FormFields.parsed("a=%FF"),
    ):
        with pytest.raises(Refusal):
            wrong()


def test_pages_of_rows_are_never_out_of_bounds() -> None:
    rows = list(range(101))
    shown = paged(rows, FormFields.parsed("page=3&rows=50"))
    assert (shown["rows"], shown["paging"]) == (
        [100],
        {"number": 3, "pages": 3, "total": 101, "first": 100, "size": 50},
    )
    assert paged(rows, FormFields.parsed("page=99"))["paging"]["number"] == 3
    assert paged([], FormFields(()))["paging"] == Paging(1, 1, 0, 0, 50).plain()
    assert matches("", "x") and matches("LIC", "user:alice") and not matches("bob", "user:alice", None)


async def test_a_failure_is_not_shared_with_later_viewers() -> None:
    results, tries = SharedResults(), 0

    async def make() -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("out")
        return tries

    with pytest.raises(OSError, match="out"):
        await results.get("key", 60.0, make)
    assert await results.get("key", 60.0, make) == 2
    assert await results.get("key", 60.0, make) == 2
