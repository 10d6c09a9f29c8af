"""Settings and arguments: Kafka's names and defaults, and what is refused at once, in words."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from inspect import signature
from typing import Any, get_type_hints

import pytest

from quorumlog.client import (
    Admin,
    Consumer,
    ErrorCode,
    KafkaError,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from quorumlog.client.checks import (
    checked_max_records,
    checked_names,
    checked_partitions,
    checked_places,
    checked_subscription,
    checked_time,
    checked_timestamps,
)
from quorumlog.client.io import coordinator
from quorumlog.client.offset_resets import parse_offset_reset
from quorumlog.client.settings import (
    AdminOptions,
    AdminSettings,
    ConsumerOptions,
    ConsumerSettings,
    ProducerOptions,
    ProducerSettings,
    addresses,
    build,
)
from quorumlog.client.sync import SyncAdmin, SyncConsumer, SyncProducer
from tests.support.client.fake_cluster import T
from tests.support.client.fake_group import COMMIT, GroupCluster
from tests.support.client.opened import in_group
from tests.support.client.refusals import refused

KINDS = [
    (AdminSettings, AdminOptions),
    (ConsumerSettings, ConsumerOptions),
    (ProducerSettings, ProducerOptions),
]


@pytest.mark.parametrize(("settings", "options"), KINDS)
def test_options_and_settings_are_in_step(settings: Any, options: Any) -> None:
    types = get_type_hints(settings)
    names = {field.name for field in fields(settings)} - {"bootstrap_servers"}
    assert {name: types[name] for name in names} == get_type_hints(options)


def test_a_mistyped_setting_names_the_nearest() -> None:
    options: dict[str, Any] = {"linger": 5}
    with pytest.raises(TypeError, match="unknown setting 'linger'; did you mean 'linger_ms'"):
        Producer("x:1", **options)
    options = {"sesion_timeout_ms": 5}
    with pytest.raises(TypeError, match="did you mean 'session_timeout_ms'"):
        Consumer("x:1", **options)
    options = {"consumer_timeout_ms": 5}
    with pytest.raises(TypeError, match=r"'consumer_timeout_ms': poll\(timeout_ms\) returns"):
        Consumer("x:1", **options)
    options = {"interceptor_classes": "x"}
    with pytest.raises(TypeError, match="set interceptors: a list of objects"):
        Consumer("x:1", **options)
    for far in ("zzz", "acks_of_all_replicas", "idle_timeout_ms"):  # a word of it is no setting's
        options = {far: 5}
        with pytest.raises(TypeError, match=rf"unknown setting '{far}'$"):
            Producer("x:1", **options)
    options = {"zzz": 5}
    with pytest.raises(TypeError, match=r"unknown setting 'zzz'$"):
        Admin("x:1", **options)


@pytest.mark.parametrize("kind", [Admin, Consumer, Producer, SyncAdmin, SyncConsumer, SyncProducer])
def test_servers_have_the_only_place_of_a_call(kind: Any) -> None:
    name = kind.__name__
    with pytest.raises(TypeError, match=rf"^{name}: bootstrap_servers is missing: {name}\('host"):
        kind()
    with pytest.raises(TypeError, match=rf"^{name} takes bootstrap_servers, .*not 'x:1' without"):
        kind("orders", "x:1")
    assert [*signature(kind).parameters] == ["bootstrap_servers", "options"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"acks": 2}, "acks must be"),
        ({"acks": 1, "enable_idempotence": True}, "enable_idempotence needs acks"),
        ({"max_in_flight": 6}, "at most 5 requests in flight"),
        ({"delivery_timeout_ms": 1_000}, "delivery_timeout_ms must be at least"),
        ({"buffer_memory": 10}, "buffer_memory must hold one batch"),
        ({"transactional_id": ""}, "transactional_id must not be empty"),
        ({"transactional_id": "tx", "acks": 1}, "transactional_id needs acks"),
        ({"transactional_id": "tx", "enable_idempotence": False}, "needs enable_idempotence"),
        ({"transactional_id": "tx", "retries": 0}, "transactional_id needs retries"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms must be above 0"),
    ],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Producer("x:1", **options)


WRONG: list[tuple[type[Admin | Consumer | Producer], dict[str, Any], type[Exception], str]] = [
    (Producer, {"linger_ms": "5"}, TypeError, "linger_ms must be of type float, not '5'"),
    (Producer, {"retries": True}, TypeError, "retries must be of type int, not True"),
    (Producer, {"retries": 2**31}, ValueError, "retries must be at most 2147483647"),
    (Producer, {"request_timeout_ms": 0}, ValueError, "request_timeout_ms must be above 0"),
    (Producer, {"max_block_ms": -1}, ValueError, "max_block_ms must not be negative"),
    (Producer, {"compression_type": "zst"}, ValueError, "must be one of 'none', 'gzip', 'snappy'"),
    (Producer, {"acks": True}, ValueError, "acks must be one of 'all', 0, 1, -1, not True"),
    (Producer, {"enable_idempotence": 1}, TypeError, "must be of type bool or None, not 1"),
    (Consumer, {"group_id": b"g"}, TypeError, "group_id must be of type str or None, not b'g'"),
    (Consumer, {"auto_offset_reset": "first"}, ValueError, "one of 'earliest', 'latest', 'none'"),
    (Consumer, {"auto_offset_reset": "by_duration:1h"}, ValueError, "'1h' is not a duration"),
    (Consumer, {"auto_offset_reset": 5}, TypeError, "auto_offset_reset must be of type str, not 5"),
    (Consumer, {"partition_assignment_strategy": "range"}, TypeError, "a list, each one of"),
    (Consumer, {"partition_assignment_strategy": ["rang"]}, TypeError, "a list, each one of"),
    (Consumer, {"partition_assignment_strategy": []}, ValueError, "at least one assignor"),
    (Admin, {"client_id": 7}, TypeError, "client_id must be of type str, not 7"),
]


@pytest.mark.parametrize(("kind", "options", "error", "complaint"), WRONG)
def test_a_value_that_cannot_be_is_refused_by_name(
    kind: type[Admin | Consumer | Producer],
    options: dict[str, Any],
    error: type[Exception],
    complaint: str,
) -> None:
    with pytest.raises(error, match=complaint):
        kind("x:1", **options)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT1H", 3_600_000),
        ("pt30m", 1_800_000),
        ("P2DT12H", 216_000_000),
        ("P1D", 86_400_000),
        ("PT1H1M1.5S", 3_661_500),
        ("PT0.000000001S", 1),
        ("PT0S", 0),
    ],
)
def test_a_reset_by_duration_is_read_as_javas_duration(text: str, duration_ms: int) -> None:
    assert parse_offset_reset(f"by_duration:{text}") == duration_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1DT",
        "1H",
        "PT1",
        "P1W",
        "P1M",
        "P1Y",
        "PT-1H",
        "-PT1H",
        "PT1.5H",
        "PT1S1M",
        "PT1H ",
        "PT.5S",
        f"PT{'9' * 16}S",
        "PT\u0661H",
    ],
)
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration of ISO 8601; write PT1H"):
        parse_offset_reset(f"by_duration:{text}")


def test_the_defaults_are_those_of_kafka_4_3() -> None:
    producer = ProducerSettings(bootstrap_servers="x:1")
    assert (producer.acks, producer.idempotent, producer.max_in_flight) == ("all", True, 5)
    assert (producer.linger_ms, producer.batch_size) == (5, 16_384)
    assert (producer.buffer_memory, producer.max_request_size) == (32 * 2**20, 2**20)
    assert (producer.delivery_timeout_ms, producer.request_timeout_ms) == (120_000, 30_000)
    consumer = ConsumerSettings(bootstrap_servers="x:1")
    assert consumer.partition_assignment_strategy == ("range", "cooperative-sticky")
    assert (consumer.session_timeout_ms, consumer.heartbeat_interval_ms) == (45_000, 3_000)
    assert (consumer.max_poll_interval_ms, consumer.max_poll_records) == (300_000, 500)
    assert (consumer.fetch_max_bytes, consumer.max_partition_fetch_bytes) == (50 * 2**20, 2**20)
    assert (consumer.auto_offset_reset, consumer.isolation_level) == ("latest", "read_uncommitted")


def test_idempotence_is_on_unless_acks_forbids_it() -> None:
    assert ProducerSettings(bootstrap_servers="x:1").idempotent
    assert not ProducerSettings(bootstrap_servers="x:1", acks=1, max_in_flight=9).idempotent
    assert not ProducerSettings(bootstrap_servers="x:1", enable_idempotence=False).idempotent


def test_bootstrap_servers_are_addresses_and_settings_are_keywords() -> None:
    assert addresses("a:1, b:2") == [("a", 1), ("b", 2)]
    assert addresses(["[::1]:9092"]) == [("::1", 9092)]
    for wrong in ("", "a", "a:b", ":1", "a:0", "a:65536"):
        with pytest.raises(ValueError, match="bootstrap_servers"):
            addresses(wrong)
    with pytest.raises(ValueError, match="write 'h:1', without 'kafka://'"):
        addresses("kafka://h:1")
    settings: Any = {"bootstrap.servers": "h:1"}
    with pytest.raises(TypeError, match="settings are keyword arguments"):
        Producer(settings)
    for other in (9092, None, b"h:1", ["h:1", 2]):
        servers: Any = other
        with pytest.raises(TypeError, match="bootstrap_servers is 'host:port,host:port' or a list"):
            Admin(servers)


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        (Producer, "transaction_two_phase_commit_enable", "there is no two-phase commit"),
        (Producer, "ssl.cipher.suites", "OpenSSL"),
        (Admin, "sasl_login_class", "of SASL there are sasl_mechanism"),
    ],
)
def test_a_setting_that_is_not_there_yet_is_no_mistyped_one(
    kind: type[Admin | Consumer | Producer], name: str, reason: str
) -> None:
    options: dict[str, Any] = {name: "anything"}
    with pytest.raises(TypeError, match=f"setting '{name}' is not supported yet: .*{reason}"):
        kind("x:1", **options)


def test_an_assignor_of_the_coordinator_needs_its_protocol() -> None:
    with pytest.raises(ValueError, match="group_protocol='consumer'"):
        build(ConsumerSettings, "x:1", {"group_remote_assignor": "range"})
    options = {"group_protocol": "consumer", "group_remote_assignor": "range"}
    assert build(ConsumerSettings, "x:1", options).group_remote_assignor == "range"
    with pytest.raises(ValueError, match="group_protocol must be one of 'classic', 'consumer'"):
        build(ConsumerSettings, "x:1", {"group_protocol": "share"})


def test_errors_of_brokers_name_the_setting() -> None:
    code = ErrorCode.INVALID_SESSION_TIMEOUT
    error = KafkaError(code, "group g", definite=True)
    assert str(error).startswith("INVALID_SESSION_TIMEOUT: group g (set session_timeout_ms: the br")
    assert error.message == "group g"
    assert str(error.again()) == str(error)
    assert str(KafkaError(code, definite=True)).startswith("INVALID_SESSION_TIMEOUT: set session_t")
    assert str(KafkaError(ErrorCode.NETWORK_EXCEPTION, definite=True)) == "NETWORK_EXCEPTION"


def test_a_time_is_a_datetime_with_a_zone_or_milliseconds() -> None:
    east = timezone(timedelta(hours=2))
    assert checked_time(datetime(1970, 1, 1, 2, 0, 1, 234_000, tzinfo=east)) == 1_234
    assert checked_time(1_234) == 1_234


WRONG_ARGUMENTS: list[tuple[Callable[[Any], object], Any, type[Exception], str]] = [
    (checked_names, "ab", TypeError, r"must be a list of names: \['ab'\]"),
    (checked_names, [1], TypeError, "each a str, not 1"),
    (checked_names, None, TypeError, "must be a list of names, not None"),
    (checked_partitions, T, TypeError, "must be a list of TopicPartitions"),
    (checked_partitions, [("t", 0)], TypeError, r"must be a TopicPartition, not \('t', 0\)"),
    (checked_partitions, 7, TypeError, "must be a list of TopicPartitions, not 7"),
    (checked_partitions, [TopicPartition("t", "0")], TypeError, "a str and an int"),  # type: ignore[arg-type]
    (checked_partitions, [TopicPartition("t", -1)], ValueError, "a partition is not negative: -1"),
    (checked_time, datetime(2026, 1, 1), ValueError, "has no time zone"),  # noqa: DTZ001 - refused
    (checked_time, datetime(1960, 1, 1, tzinfo=UTC), ValueError, "milliseconds since 1970: -3"),
    (checked_time, "2026-01-01", TypeError, "a time is a datetime or an int of milliseconds"),
    (checked_time, -1, ValueError, "a time is milliseconds since 1970: -1"),
    (checked_max_records, -1, ValueError, "max_records must not be negative: -1"),
    (checked_max_records, 2.0, TypeError, "max_records is an int, not 2.0"),
    (checked_places, {T: -5}, ValueError, "an offset is 0 to"),
    (checked_places, {T: 2**63}, ValueError, "an offset is 0 to"),
    (checked_places, {T: "5"}, TypeError, "an offset is an int, not '5'"),
    (checked_places, {T: True}, TypeError, "an offset is an int, not True"),
    (checked_places, {T: OffsetAndMetadata(5, metadata=None)}, TypeError, "metadata a str"),  # type: ignore[arg-type]
    (checked_places, {"t": 5}, TypeError, "must be a TopicPartition, not 't'"),
    (checked_places, [T], TypeError, "must be a dict of TopicPartition to offsets"),
    (checked_timestamps, [T], TypeError, "must be a dict of TopicPartition to times in ms"),
    (checked_timestamps, {T: 1.5}, TypeError, "an int of milliseconds, not 1.5"),
    (checked_timestamps, {T: -9}, ValueError, "milliseconds since 1970: -9"),
]


@pytest.mark.parametrize(("check", "value", "error", "complaint"), WRONG_ARGUMENTS)
def test_what_cannot_be_is_refused(
    check: Callable[[Any], object], value: Any, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        check(value)


def test_what_can_be_is_taken() -> None:
    assert checked_partitions([T, T]) == [T]
    assert checked_places({T: 5}) == {T: OffsetAndMetadata(5)}
    assert checked_timestamps({T: -2}) == {T: -2}


@asynccontextmanager
async def assigned() -> AsyncIterator[tuple[GroupCluster, Consumer]]:
    async with in_group(group_id="g", enable_auto_commit=False) as (cluster, consumer):
        consumer.assign([T])
        yield cluster, consumer


@pytest.mark.parametrize(
    ("pattern", "protocol", "error", "text"),
    [
        ("t(", "classic", ValueError, "no regular expression"),
        ("", "consumer", ValueError, "an empty pattern"),
        (b"t", "consumer", TypeError, "a pattern is a str"),
    ],
)
def test_a_wrong_pattern_is_refused(
    pattern: Any, protocol: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        checked_subscription([], pattern, protocol)
    assert checked_subscription(["u"], "t.*", "consumer") == ["u"]
    assert checked_subscription(["u"], None, "classic") == ["u"]


async def test_a_consumer_checks_before_it_does_anything() -> None:
    async with assigned() as (cluster, consumer):
        wrong: Any = "5"
        alone: Any = T
        with pytest.raises(TypeError, match="an offset is an int, not '5'"):
            consumer.seek(T, wrong)
        with pytest.raises(ValueError, match="an offset is 0 to"):
            consumer.seek(T, -1)
        with pytest.raises(TypeError, match="a list of TopicPartitions"):
            await consumer.committed(alone)
        with pytest.raises(TypeError, match="a dict of TopicPartition"):
            await consumer.offsets_for_times([alone])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a list of TopicPartitions"):
            await consumer.end_offsets(alone)
        with pytest.raises(ValueError, match="an offset is 0 to"):
            await consumer.commit({T: -5})
        with pytest.raises(TypeError, match="a list of topics"):
            consumer.subscribe("t")
        assert COMMIT not in {api for _, api in cluster.asked}


async def test_a_commit_names_the_missing_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "UNKNOWN_TOPIC_MS", 20)

    async with assigned() as (cluster, consumer):
        cluster.refusals = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1_000
        text = "group g: the offset of t-0 is not committed"
        with refused(text, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            await consumer.commit({T: 5})


async def test_a_commit_ends_when_the_caller_said() -> None:
    async with assigned() as (cluster, consumer):
        cluster.refusals = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 1_000
        with pytest.raises(KafkaError, match="group g"):
            await consumer.commit({T: 5}, timeout_ms=50)
