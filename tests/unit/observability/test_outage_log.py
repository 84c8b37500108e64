"""Is an outage told when it begins and when it is over, and not with every call?"""

import logging
from pathlib import Path

import pytest

from sidecar.observability.outage_log import TELL_EVERY_S, Outage
from sidecar.storage import RecordStoreOut, RedisRecordStore, SqliteFile
from sidecar.storage.push_configs import PUSHES

OUT, BACK = "a store is unavailable", "a store is back"


def test_it_is_told_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    outage = Outage(logging.getLogger("it"), "runs", lambda: now_s)
    outage.rose()
    for _ in range(3):
        outage.fell("no reply")
    outage.rose()
    outage.rose()
    assert caplog.messages == [OUT, BACK]
    assert vars(caplog.records[0]).items() >= {"store": "runs", "error": "no reply"}.items()


def test_one_that_comes_and_goes_is_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    outage = Outage(logging.getLogger("it"), "runs", lambda: now_s)
    for _ in range(100):
        outage.fell("no reply")
        outage.rose()
        now_s += TELL_EVERY_S / 50
    assert caplog.messages == [OUT, BACK] * 2


async def test_a_file_and_a_key_that_are_out_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers = False

    async def run(*_: object) -> list[bytes]:
        if not answers:
            raise ConnectionError("nobody there")
        return []

    key, file = RedisRecordStore(run, PUSHES), SqliteFile(tmp_path / "not-there" / "file")
    for _ in range(3):
        with pytest.raises(RecordStoreOut):
            await key.counts()
        with pytest.raises(RecordStoreOut):
            await file.run(lambda connection: None)
    assert [(one.message, vars(one)["store"]) for one in caplog.records] == [(OUT, "push-configs"), (OUT, "records")]
    answers = True
    (tmp_path / "not-there").mkdir()
    await key.counts()
    await file.run(lambda connection: None)
    assert [(one.message, vars(one)["store"]) for one in caplog.records[2:]] == [
        (BACK, "push-configs"),
        (BACK, "records"),
    ]
    await file.close()
