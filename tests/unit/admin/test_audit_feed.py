"""Do browsers that look at a log share what is read, and does none of them hold up or fill the others?"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from sidecar.admin.console import audit_feed
from sidecar.admin.console.audit_feed import MAX_WAITING, AuditFeed, FeedViewer
from sidecar.admin.console.log_news import MAX_ROWS, FeedNews, close_tails
from sidecar.audit.log_blocks import LogFiles, RecentLines
from sidecar.audit.record_filter import RecordFilter
from sidecar.audit.search import FoundRecord, Logs
from tests.flow.world import PATIENCE_S


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_feed, "TICK_S", 0.02)


def line(seq: int, obj: str = "tool:a/b") -> bytes:
    at = f"2026-11-30T00:00:00.{seq:06d}Z"
    return b'{"v":2,"event":"outcome","seq":%d,"timestamp":"%b","object":"%b"}\n' % (seq, at.encode(), obj.encode())


def sequences(found: Sequence[FoundRecord]) -> list[Mapping[str, Any]]:
    return [{"worker": one.worker, "seq": one.record["seq"]} for one in found]


def feed_of(logs: Logs) -> AuditFeed:
    return AuditFeed(lambda work: asyncio.to_thread(work, logs), sequences)


async def seen(feed: AsyncGenerator[FeedNews]) -> FeedNews:
    """The next news with something in it."""
    async with asyncio.timeout(PATIENCE_S):
        async for news in feed:
            if news.rows or news.left_out:
                return news
    raise AssertionError("the feed ended")


async def test_browsers_with_one_filter_get_the_same_rows_and_the_files_are_closed_after_them(tmp_path: Path) -> None:
    paths = {1: tmp_path / "1.jsonl", 2: tmp_path / "2.jsonl"}
    paths[1].write_bytes(line(1))
    feed = feed_of({worker: LogFiles(path) for worker, path in paths.items()})
    everything, only = RecordFilter(), RecordFilter(object="tool:c/*")
    async with (
        aclosing(feed.watch(everything)) as one,
        aclosing(feed.watch(everything)) as another,
        aclosing(feed.watch(only)) as third,
    ):
        for viewer in (one, another, third):
            assert await anext(viewer) == FeedNews()
        with paths[1].open("ab") as file:
            file.write(line(3))
        paths[2].write_bytes(line(2, "tool:c/d"))
        news: list[FeedNews] = []
        while sum(len(each.rows) for each in news) < 2:
            news.append(await seen(one))
        same: list[FeedNews] = []
        while sum(len(each.rows) for each in same) < 2:
            same.append(await seen(another))
        assert {each.number for each in news} == {each.number for each in same}
        assert sorted(row["seq"] for each in news for row in each.rows) == [2, 3]
        assert (await seen(third)).rows == [{"worker": 2, "seq": 2}]
    assert feed._task is not None
    async with asyncio.timeout(PATIENCE_S):
        await feed._task
    async with aclosing(feed.watch(everything)) as late:  # begins anew
        assert await anext(late) == FeedNews()
        with paths[1].open("ab") as file:
            file.write(line(4))
        assert (await seen(late)).rows == [{"worker": 1, "seq": 4}]


async def test_of_many_records_the_newest_are_shown_and_the_others_counted() -> None:
    recent = RecentLines()
    feed = feed_of({0: recent})
    async with aclosing(feed.watch(RecordFilter())) as viewer:
        await anext(viewer)
        recent.add([line(seq) for seq in range(1, 301)])
        news = await seen(viewer)
        assert [row["seq"] for row in news.rows] == list(range(300, 300 - MAX_ROWS, -1))
        assert news.left_out == 300 - MAX_ROWS


async def test_a_browser_that_is_slow_loses_the_oldest_news_and_hears_of_it() -> None:
    viewer = FeedViewer(RecordFilter())
    for number in range(1, MAX_WAITING + 4):
        viewer.add(FeedNews([{"seq": number}], 1, number))
    first = await viewer.next()
    assert (first.number, first.left_out) == (4, 1 + 3 * 2)
    assert (await viewer.next()).number == 5


async def test_a_log_that_cannot_be_read_stops_no_other() -> None:
    recent = RecentLines()

    class Broken(RecentLines):
        def newest(self, most: int) -> Sequence[bytes]:
            raise OSError(5, "input/output error")

    feed = feed_of({1: Broken(), 2: recent})
    async with aclosing(feed.watch(RecordFilter())) as viewer:
        await anext(viewer)
        recent.add([line(1)])
        assert (await seen(viewer)).rows == [{"worker": 2, "seq": 1}]


async def test_a_browser_that_comes_while_the_logs_are_being_closed_gets_news_too() -> None:
    recent, closing, opened_again = RecentLines(), asyncio.Event(), asyncio.Event()

    async def read(work: Callable[[Logs], Any]) -> Any:
        if work is close_tails and not closing.is_set():
            closing.set()
            await opened_again.wait()
        return work({0: recent})

    feed = AuditFeed(read, sequences)
    async with aclosing(feed.watch(RecordFilter())) as first:
        await anext(first)
    async with asyncio.timeout(PATIENCE_S):
        await closing.wait()
    async with aclosing(feed.watch(RecordFilter())) as late:
        coming = asyncio.ensure_future(anext(late))
        await asyncio.sleep(0)
        opened_again.set()
        assert await coming == FeedNews()
        recent.add([line(1)])
        assert (await seen(late)).rows == [{"worker": 0, "seq": 1}]
