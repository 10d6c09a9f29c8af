"""What a broker says of its progress while it opens and closes logs."""

import shutil
from pathlib import Path

import pytest

from quorumlog.broker.partitions.log.log_progress import LogProgress
from quorumlog.storage.core import recent_batches
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import AT, append, one_broker, start

MIB = 1 << 20


async def test_logs_that_are_to_be_opened_are_told_until_all_are_open(tmp_path: Path) -> None:
    queue = HeldQueue()
    queue.is_held = True
    replicas = await start(tmp_path, disk_queue=queue)
    assert replicas.descriptions.progress() == "opening logs: 0 of 1, 0 MiB read"
    queue.release()
    assert replicas.drivers.get(AT) is not None
    assert replicas.descriptions.progress() == ""
    await replicas.stop()
    assert replicas.descriptions.progress() == "closing logs: 1 of 1"


@pytest.mark.parametrize(("batches", "producers_max"), [(2, 1), (1, 0)])
async def test_what_is_read_of_a_log_after_a_crash_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, producers_max: int
) -> None:
    """Both the check of the records, and the reading of producers that it has not noted."""
    monkeypatch.setattr(recent_batches, "PRODUCERS_MAX", producers_max)
    record = Record(0, 1, None, bytes(600_000))
    async with one_broker(tmp_path / "runs") as replicas:
        for number in range(batches):
            named = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number}
            append(replicas, records=encode_batch([record], **named))
        shutil.copytree(tmp_path / "runs", tmp_path / "crashed")
    async with one_broker(tmp_path / "crashed") as again:
        described = again._logs.progress.describe(opened=0, left=1)
    assert described == "opening logs: 0 of 1, 1 MiB read"


def test_a_text_is_another_one_only_with_progress() -> None:
    progress = LogProgress()
    assert progress.describe(opened=0, left=2) == "opening logs: 0 of 2, 0 MiB read"
    progress.note_read(MIB - 1)
    progress.note_read(1)
    assert progress.describe(opened=0, left=2) == "opening logs: 0 of 2, 1 MiB read"
    assert progress.describe(opened=2, left=0) == ""
    progress.close(lambda: None)
    assert progress.describe(opened=2, left=0) == "closing logs: 1 of 2"
    progress = LogProgress()
    progress.note_postponed(0, "orders-0", "no room")
    assert progress.describe(opened=2, left=1) == "opening logs: 2 of 3"
    progress.close(lambda: None)
    assert progress.describe(opened=2, left=1) == "closing logs: 1 of 2"


def test_a_log_that_waits_for_room_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    progress = LogProgress()
    for now_ms in range(0, 61_000, 500):
        progress.note_postponed(now_ms, "orders-0", "no room")
    assert [record.getMessage() for record in caplog.records] == [
        "orders-0: no room",
        "orders-0: no room (121 times in 60 s)",
    ]
    caplog.set_level("INFO")
    progress.note_opened(61_000, "orders-0")
    assert "all logs that lacked room are open" in caplog.records[-1].getMessage()
