"""What a broker remembers of producers outlives it: in snapshots, which it writes as it goes."""

from pathlib import Path

import pytest

from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.broker.one_broker import (
    append,
    follow,
    from_leader,
    one_broker,
    publish,
    sequenced,
)
from tests.support.broker.replicas import image

SMALL = LogSettings(segment_bytes=200)  # two batches each


def snapshots(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("orders-0/*.snapshot"))


async def test_a_leader_writes_one_where_a_segment_begins_and_at_its_end(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=SMALL) as replicas:
        for sequence in range(5):
            assert append(replicas, records=sequenced(sequence)).base_offset == sequence
        assert snapshots(tmp_path) == [2, 4]
    assert snapshots(tmp_path) == [2, 4, 5]


async def test_a_follower_does_as_well(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2), log_settings=SMALL) as replicas:
        take = follow(replicas)
        for offset in range(5):
            take(from_leader(offset, sequence=offset))
        assert snapshots(tmp_path) == [2, 4]
    assert snapshots(tmp_path) == [2, 4, 5]


async def test_every_one_of_five_batches_is_known_again_without_reading_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_broker(tmp_path) as replicas:
        for sequence in range(7):
            append(replicas, records=sequenced(sequence))
    monkeypatch.setattr(Log, "headers", lambda log, offset: pytest.fail("the log is read"))
    async with one_broker(tmp_path) as replicas:
        publish(replicas, image(1, 1, 1, (1,), replicas=(1,)))
        for sequence in range(2, 7):
            assert append(replicas, records=sequenced(sequence)).base_offset == sequence
        forgotten = append(replicas, records=sequenced(1))
        assert forgotten.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert append(replicas, records=sequenced(7)).base_offset == 7
