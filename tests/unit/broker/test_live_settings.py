"""The configuration of topics and brokers is in force as soon as it is published."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from quorumlog.broker.replicas import Replicas
from quorumlog.broker.settings import BrokerSettings
from quorumlog.clock import wall_clock_ms
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.settings.kinds import counts_by_address
from quorumlog.settings.servers import DYNAMIC, rows_of
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.message import contents
from quorumlog.wire.codec.records import Record, decode_batch, encode_batch
from tests.support.broker.one_broker import (
    AT,
    append,
    fetch_of,
    follow,
    from_leader,
    one_broker,
    publish,
    sequenced,
)
from tests.support.broker.replica_calls import fetch_from
from tests.support.broker.replicas import image

ALONE = image(1, 0, 0, (1,), replicas=(1,))


def segments(replicas: Replicas) -> list[Offset]:
    return [*replicas.drivers[AT].log.segment_base_offsets]


async def test_a_leader_rolls_segments_by_the_new_size_and_the_old_again(tmp_path: Path) -> None:
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
    settings = LogSettings(segment_bytes=1000, segment_ms=5)
    async with one_broker(tmp_path, log_settings=settings) as replicas:
        driver = replicas.drivers[AT]
        changed = {"segment_ms": "7", "index_interval_bytes": "9", "cleanup_policy": "compact"}
        publish(replicas, ALONE, **changed)
        assert driver.log.settings == LogSettings(
            segment_ms=7, index_interval_bytes=9, cleanup_policy="compact", segment_bytes=1000
        )


async def test_min_insync_replicas_and_message_limits_are_in_force_at_once(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        assert append(replicas, acks=-1).error_code is ErrorCode.NONE
        publish(replicas, image(1, 0, 1, (1,), replicas=(1, 2)), min_insync_replicas="2")
        assert append(replicas, acks=-1).error_code is ErrorCode.NOT_ENOUGH_REPLICAS
        publish(replicas, image(1, 0, 2, (1,), replicas=(1, 2)), min_insync_replicas="1")
        assert append(replicas, acks=-1).error_code is ErrorCode.NONE
        publish(replicas, image(1, 0, 3, (1,), replicas=(1,)), max_message_bytes="10")
        assert append(replicas).error_code is ErrorCode.MESSAGE_TOO_LARGE
        publish(replicas, image(1, 0, 4, (1,), replicas=(1,)))
        assert append(replicas).error_code is ErrorCode.NONE


async def test_a_compacting_node_wants_keys_of_topics_that_name_no_policy(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=LogSettings(cleanup_policy="compact")) as replicas:
        assert append(replicas).error_code is ErrorCode.INVALID_RECORD
        publish(replicas, ALONE, cleanup_policy="delete")
        assert append(replicas).error_code is ErrorCode.NONE


def alter_brokers(replicas: Replicas, **configs: dict[str, str]) -> None:
    """Publish settings of brokers: `b` of all, `b1` of broker 1."""
    named = {name.removeprefix("b"): of for name, of in configs.items()}
    altered = replace(replicas.image, broker_configs=named)
    replicas.publish(ClusterDelta(broker_configs=frozenset(named)), altered)


async def test_what_was_altered_for_brokers_is_in_force_on_open_logs(tmp_path: Path) -> None:
    """The broker's own goes before all brokers', and the topic's before both."""
    async with one_broker(tmp_path) as replicas:
        more_than_half = encode_batch([Record(0, 0, None, bytes(600_000))])
        append(replicas, records=more_than_half)
        driver = replicas.drivers[AT]
        alter = partial(alter_brokers, replicas)
        alter(b={"log.segment.bytes": "1048576", "log.roll.ms": "9"}, b2={"log.roll.ms": "1"})
        assert (driver.log.settings.segment_bytes, driver.log.settings.segment_ms) == (1048576, 9)
        append(replicas, records=more_than_half)
        append(replicas, records=more_than_half)
        assert segments(replicas) == [0, 1, 2]
        alter(b={"log.roll.ms": "9"}, b1={"log.roll.ms": "8", "message.max.bytes": "1"})
        assert driver.log.settings.segment_ms == 8
        assert append(replicas).error_code is ErrorCode.MESSAGE_TOO_LARGE
        publish(replicas, ALONE, segment_ms="7")  # and nothing is altered any more
        assert driver.log.settings.segment_ms == 7
        assert append(replicas).error_code is ErrorCode.NONE


async def test_a_name_that_a_former_release_kept_unchecked_changes_nothing(tmp_path: Path) -> None:
    """It was unknown to the controller, so that its value may be no value of the setting."""
    async with one_broker(tmp_path) as replicas:
        before = (replicas.settings, replicas.drivers[AT].log.settings)
        kept = {"log.roll.ms": "x", "max.connections": "x", "num.partitions": "9", "un.known": "x"}
        alter_brokers(replicas, b=kept, b1=kept)
        assert (replicas.settings, replicas.drivers[AT].log.settings) == before


OF_ADDRESSES = "max.connections.per.ip.overrides"
OF_THE_BROKER = {
    "log.cleaner.backoff.ms": 7,
    "log.cleaner.io.max.bytes.per.second": 8.5,
    "max.connection.creation.rate": 14,
    "max.connections": 9,
    "max.connections.per.ip": 15,
    "producer.id.expiration.ms": 10,
    "replica.alter.log.dirs.io.max.bytes.per.second": 13,
}


@pytest.mark.parametrize(("name", "value"), OF_THE_BROKER.items())
async def test_the_last_alteration_counts(tmp_path: Path, name: str, value: float) -> None:
    (field,) = (field for field, row in rows_of(BrokerSettings).items() if row.name == name)
    async with one_broker(tmp_path) as replicas:
        default = getattr(replicas.settings, field)
        alter_brokers(replicas, b={name: str(value)})
        assert getattr(replicas.settings, field) == value
        alter_brokers(replicas, b={name: str(value)}, b1={name: "11"}, b2={name: "12"})
        assert getattr(replicas.settings, field) == 11
        alter_brokers(replicas, b={})
        assert getattr(replicas.settings, field) == default


async def test_limits_of_single_addresses_are_altered(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        alter_brokers(replicas, b={OF_ADDRESSES: " 10.0.0.1:5 , ::1:7 "})
        text = replicas.settings.max_connections_per_ip_overrides
        assert counts_by_address(text) == {"10.0.0.1": 5, "::1": 7}
        alter_brokers(replicas, b={OF_ADDRESSES: "some.host:5"})  # is no address
        assert replicas.settings.max_connections_per_ip_overrides == ""


def test_each_setting_that_can_be_altered_is_a_topics_or_is_tested_here() -> None:
    throttles = {"follower.replication.throttled.rate", "leader.replication.throttled.rate"}
    others = [
        name
        for name, row in DYNAMIC.items()
        if "For topics that" not in row.documentation and not row.without_effect
    ]
    assert {*others} == {*OF_THE_BROKER, *throttles, OF_ADDRESSES}


@pytest.mark.jumping_time
async def test_a_cleaner_that_rests_for_long_hears_that_it_is_to_rest_less(tmp_path: Path) -> None:
    settings = BrokerSettings(log_cleaner_backoff_ms=3_600_000)
    async with one_broker(tmp_path, settings=settings) as replicas:
        rounds = 0

        async def count() -> bool:
            nonlocal rounds
            rounds += 1
            return False

        replicas.ticks.cleaner.clean_dirtiest = count  # type: ignore[method-assign]
        running = asyncio.ensure_future(replicas.ticks.cleaner.run())
        await asyncio.sleep(60)
        assert rounds == 0
        alter_brokers(replicas, b={"log.cleaner.backoff.ms": "500"})
        await asyncio.sleep(3)
        assert rounds >= 2
        running.cancel()


@pytest.mark.jumping_time
async def test_producers_are_forgotten_after_the_new_time(tmp_path: Path) -> None:
    settings = BrokerSettings(producer_id_expiration_check_interval_ms=1000)
    async with one_broker(tmp_path, settings=settings) as replicas:
        expired: list[int] = []
        producers = replicas.drivers[AT].producers
        producers.expire = lambda _, after_ms: expired.append(after_ms)  # type: ignore[method-assign, assignment]
        ticking = asyncio.ensure_future(replicas.ticks.run())
        await asyncio.sleep(3)
        alter_brokers(replicas, b={"producer.id.expiration.ms": "5"})
        await asyncio.sleep(3)
        ticking.cancel()
        assert {*expired} == {86_400_000, 5}


async def test_the_leader_stamps_and_tells_the_time_of_the_append(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        assert append(replicas).log_append_time_ms == -1
        publish(replicas, ALONE, message_timestamp_type="LogAppendTime")
        before_ms = wall_clock_ms()
        time_ms = append(replicas).log_append_time_ms
        assert before_ms <= time_ms <= wall_clock_ms()
        found = await replicas.list_offset(AT, time_ms)
        assert (found.offset, found.timestamp_ms) == (1, time_ms)
        answers = fetch_from(replicas, fetch_of(1))
        assert isinstance(answers, list)
        records = b"".join(contents(answers[0].records))
        assert [record.timestamp_ms for record in decode_batch(records)] == [time_ms]
        first, again = (append(replicas, records=sequenced(0)) for _ in range(2))
        assert first.log_append_time_ms > 0
        assert (again.base_offset, again.log_append_time_ms) == (2, -1)
        await replicas.ticks.retention.check_all()
        assert replicas.drivers[AT].log.log_start_offset == 1  # the first was not stamped
