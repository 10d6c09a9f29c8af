"""A topic's configuration is in force on open logs as soon as it is published."""

from dataclasses import replace
from pathlib import Path

from quorumlog.broker.replicas import Replicas
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset
from tests.support.broker.one_broker import (
    AT,
    append,
    follow,
    from_leader,
    one_broker,
    publish,
)
from tests.support.broker.replicas import image

ALONE = image(1, 0, 0, (1,), replicas=(1,))


def segments(replicas: Replicas) -> list[Offset]:
    driver = replicas.drivers.get(AT)
    assert driver is not None
    return [*driver.log.segment_base_offsets]


async def test_a_leader_rolls_segments_by_the_new_size_and_by_the_old_one_again(
    tmp_path: Path,
) -> None:
    async with one_broker(tmp_path) as replicas:
        append(replicas)
        publish(replicas, ALONE, segment_bytes="14")
        append(replicas)
        append(replicas)
        assert segments(replicas) == [0, 1, 2]
        publish(replicas, ALONE)  # deleted: the broker's own is in force
        append(replicas)
        assert segments(replicas) == [0, 1, 2]


async def test_a_follower_rolls_its_own_segments_by_the_new_size(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take = follow(replicas)
        take(from_leader(0))
        publish(replicas, image(2, 1, 1, (1, 2), replicas=(1, 2)), segment_bytes="14")
        take(from_leader(1))
        assert segments(replicas) == [0, 1]


async def test_what_a_topic_does_not_say_stays_the_brokers(tmp_path: Path) -> None:
    async with one_broker(
        tmp_path, log_settings=LogSettings(segment_bytes=1000, segment_ms=5)
    ) as replicas:
        driver = replicas.drivers.get(AT)
        assert driver is not None
        changed = {"segment_ms": "7", "index_interval_bytes": "9", "cleanup_policy": "compact"}
        publish(replicas, ALONE, **changed)
        assert driver.log.settings == LogSettings(
            segment_ms=7, index_interval_bytes=9, cleanup_policy="compact", segment_bytes=1000
        )


async def test_min_insync_replicas_is_in_force_on_the_leader_at_once(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        assert append(replicas, acks=-1).error_code is ErrorCode.NONE
        publish(replicas, image(1, 0, 1, (1,), replicas=(1, 2)), min_insync_replicas="2")
        assert append(replicas, acks=-1).error_code is ErrorCode.NOT_ENOUGH_REPLICAS
        publish(replicas, image(1, 0, 2, (1,), replicas=(1, 2)), min_insync_replicas="1")
        assert append(replicas, acks=-1).error_code is ErrorCode.NONE


async def test_message_limits_are_in_force_at_once(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        publish(replicas, ALONE, max_message_bytes="10")
        assert append(replicas).error_code is ErrorCode.MESSAGE_TOO_LARGE
        publish(replicas, ALONE)
        assert append(replicas).error_code is ErrorCode.NONE


async def test_a_compacting_node_wants_keys_of_topics_that_name_no_policy(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=LogSettings(cleanup_policy="compact")) as replicas:
        assert append(replicas).error_code is ErrorCode.INVALID_RECORD
        publish(replicas, ALONE, cleanup_policy="delete")
        assert append(replicas).error_code is ErrorCode.NONE


async def test_what_was_altered_for_brokers_is_in_force_on_open_logs(tmp_path: Path) -> None:
    """The broker's own goes before all brokers', and the topic's before both."""
    async with one_broker(tmp_path) as replicas:
        append(replicas)
        driver = replicas.drivers[AT]

        def alter(**configs: dict[str, str]) -> None:
            named = {name.removeprefix("b"): of for name, of in configs.items()}
            altered = replace(replicas.image, broker_configs=named)
            replicas.publish(ClusterDelta(broker_configs=frozenset(named)), altered)

        alter(b={"log.segment.bytes": "14", "log.roll.ms": "9"}, b2={"log.roll.ms": "1"})
        assert (driver.log.settings.segment_bytes, driver.log.settings.segment_ms) == (14, 9)
        append(replicas)
        append(replicas)
        assert segments(replicas) == [0, 1, 2]
        alter(b={"log.roll.ms": "9"}, b1={"log.roll.ms": "8", "message.max.bytes": "1"})
        assert driver.log.settings.segment_ms == 8
        assert append(replicas).error_code is ErrorCode.MESSAGE_TOO_LARGE
        publish(replicas, ALONE, segment_ms="7")  # and nothing is altered any more
        assert driver.log.settings.segment_ms == 7
        assert append(replicas).error_code is ErrorCode.NONE
