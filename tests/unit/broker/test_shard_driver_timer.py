"""The timer of a coordinator's shard, on the event loop that a node runs where it is installed."""

import asyncio
from unittest.mock import Mock

import pytest

from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard
from quorumlog.broker.coordination.io.shard_driver import ShardDriver
from quorumlog.wire.codec.identifiers import TopicPartition


def test_a_deadline_that_is_over_can_be_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a call without a delay, uvloop returns a handle that has no time to compare with."""
    uvloop = pytest.importorskip("uvloop")
    monkeypatch.setattr(CoordinatorShard, "next_deadline_ms", 0)

    async def set_twice() -> None:
        driver = ShardDriver(
            TopicPartition("__consumer_offsets", 0),
            replicas=Mock(),
            new_coordinator=Mock(),
            load_buffer_bytes=1,
            now_ms=lambda: 1,
            on_fatal=Mock(),
        )
        driver._set_timer()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(set_twice())
