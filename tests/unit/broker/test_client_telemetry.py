"""Metrics that clients report (KIP-714): subscriptions, errors, reports, families. Virtual time."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.broker.telemetry.core import instances as module
from quorumlog.broker.telemetry.core import otlp
from quorumlog.broker.telemetry.core.instances import ClientInstances, ClientProperties, Instance
from quorumlog.broker.telemetry.core.otlp import MalformedReport, Point, points
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.node.metrics.client_families import FAMILIES_MAX, client_families
from quorumlog.node.metrics.exposition import lines
from quorumlog.node.node_broker import with_telemetry
from quorumlog.settings.client_metrics import patterns
from quorumlog.settings.kinds import BadValue
from quorumlog.wire.codec.compression import Compression, compress
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest
from quorumlog.wire.codec.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
)
from quorumlog.wire.codec.messages.push_telemetry import PushTelemetryRequest
from tests.support.broker.quota_clients import Peer
from tests.support.broker.reports import CUMULATIVE, SUM, field, histogram, metric, report
from tests.support.groups.single_broker import SETTINGS, single_broker

ME = bytes(15) + b"\xff"
JAVA = ClientProperties(
    client_id="orders",
    client_software_name="apache-kafka-java",
    client_software_version="4.1.0",
    client_source_address="127.0.0.1",
    client_source_port="50000",
)
ALL = {"all": {"metrics": "*", "interval.ms": "1000"}}
REPORT = report(metric("org.apache.kafka.consumer.lag", 7.0))


def subscribed(configs: dict[str, dict[str, str]] | None = None) -> ClientInstances:
    instances = ClientInstances(1_048_576)
    instances.subscribe(ALL if configs is None else configs)
    return instances


def ask(instances: ClientInstances, now_ms: int = 0, instance_id: bytes = ME) -> Instance:
    found = instances.asked(instance_id, JAVA, now_ms)
    assert isinstance(found, Instance)
    return found


def push(
    instances: ClientInstances,
    now_ms: int,
    data: bytes = REPORT,
    *,
    instance_id: bytes = ME,
    subscription_id: int | None = None,
    compression: int = Compression.NONE,
    is_terminating: bool = False,
) -> ErrorCode:
    if subscription_id is None:
        subscription_id = instances._instances[instance_id].subscription_id
    return instances.pushed(
        instance_id,
        JAVA,
        now_ms,
        subscription_id=subscription_id,
        is_terminating=is_terminating,
        compression=compression,
        metrics=memoryview(data),
    )


# --- subscriptions ---


def test_a_client_gets_the_union_of_the_subscriptions_that_match_it() -> None:
    configs = {
        "a": {"metrics": "b.,a.", "match": "client_software_name=apache-kafka-.*"},
        "b": {"metrics": "a.,c.", "interval.ms": "9000", "match": "client_id=orders"},
        "c": {"metrics": "*", "match": "client_id=order"},
        "d": {"metrics": "*", "match": "client_id=orders,client_source_port=1"},
    }
    found = ask(subscribed(configs))
    assert (found.metrics, found.interval_ms) == (("a.", "b.", "c."), 9000)
    found = ask(subscribed({**configs, "e": {"metrics": "*,x"}}))
    assert found.metrics == ("*",)
    found = ask(subscribed({}))
    assert (found.metrics, found.interval_ms) == ((), 300_000)


def test_the_id_of_a_subscription_is_of_its_content_and_of_the_client() -> None:
    """CRC32C of `[*]1000`, xor the hash of Java's Uuid."""
    assert ask(subscribed()).subscription_id == module._subscription_id(("*",), 1000, ME)
    one = module._subscription_id((), 300_000, bytes(16))
    assert one ^ 255 == module._subscription_id((), 300_000, ME)
    assert -(2**31) <= one < 2**31
    assert one not in {
        module._subscription_id(("a",), 300_000, bytes(16)),
        module._subscription_id((), 300_001, bytes(16)),
    }


def test_a_changed_subscription_is_sent_at_once() -> None:
    instances = subscribed()
    first = ask(instances)
    assert push(instances, 10) is ErrorCode.NONE
    instances.subscribe({"all": {"metrics": "x", "interval.ms": "1000"}})
    assert push(instances, 1_100, subscription_id=first.subscription_id) is (
        ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    )
    assert ask(instances, 1_101).metrics == ("x",)
    assert push(instances, 1_102) is ErrorCode.NONE
    assert instances.shown(1_102)[0][1].series  # kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client=x", "Illegal client matching pattern: client=x"),
        ("client_id", "Illegal client matching pattern: client_id"),
        ("client_id=a=b", "Illegal client matching pattern: client_id=a=b"),
        ("client_id=", "Illegal client matching pattern"),
        ("client_id=[", "Illegal client matching pattern: client_id=["),
        ("client_id=(", "Illegal client matching pattern"),
        ("client_id=" + "x" * 256, "more than 255 characters"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadValue, match=re.escape(message)):
        patterns(text)


def test_the_time_of_a_match_is_bounded() -> None:
    """With Python's `re` this match would take years."""
    match = patterns("client_id=(a+)+b")["client_id"]
    assert not match("a" * 60)
    assert match("aab")


# --- errors ---


def test_requests_before_their_time_are_throttled() -> None:
    instances = subscribed()
    ask(instances)
    assert instances.asked(ME, JAVA, 999) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert push(instances, 10) is ErrorCode.NONE  # the first one is due at any time
    assert push(instances, 1_009) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert push(instances, 1_010) is ErrorCode.NONE
    assert instances.asked(ME, JAVA, 2_009) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert push(instances, 1_500, is_terminating=True) is ErrorCode.NONE  # the last one, too
    assert instances.pushes == {ErrorCode.NONE: 3, ErrorCode.THROTTLING_QUOTA_EXCEEDED: 1}


def test_nothing_is_pushed_after_the_last_push() -> None:
    instances = subscribed()
    ask(instances)
    assert push(instances, 1, is_terminating=True) is ErrorCode.NONE
    assert push(instances, 5_000, is_terminating=True) is ErrorCode.INVALID_REQUEST
    assert push(instances, 5_000, is_terminating=True) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("number", [0, 1, 99])
def test_a_reserved_id_is_no_clients(number: int) -> None:
    instances = subscribed()
    found = push(instances, 1, instance_id=number.to_bytes(16, "big"), subscription_id=1)
    assert found is ErrorCode.INVALID_REQUEST
    assert len(instances) == 0


def test_each_other_refusal_has_its_error() -> None:
    for now_ms, (data, compression, shift, expected) in enumerate(
        (
            (REPORT, 0, 1, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
            (REPORT, 5, 0, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
            (REPORT, -1, 0, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
            (bytes(1_048_577), 0, 0, ErrorCode.TELEMETRY_TOO_LARGE),
            (b"\xff", 0, 0, ErrorCode.INVALID_RECORD),
            (REPORT, Compression.GZIP, 0, ErrorCode.INVALID_RECORD),
            (compress(Compression.GZIP, bytes(2**23)), 1, 0, ErrorCode.INVALID_RECORD),
        )
    ):
        instances = subscribed()
        mine = ask(instances, now_ms).subscription_id
        found = push(instances, now_ms, data, compression=compression, subscription_id=mine + shift)
        assert found is expected
        may_ask = expected in {
            ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        }
        assert isinstance(instances.asked(ME, JAVA, now_ms + 1), Instance) is may_ask


@pytest.mark.parametrize("compression", Compression)
def test_reports_have_any_compression_of_kafka(compression: Compression) -> None:
    instances = subscribed()
    ask(instances)
    data = compress(compression, REPORT)
    assert push(instances, 1, data, compression=compression) is ErrorCode.NONE
    assert instances.shown(1)[0][1].series


# --- the states ---


def test_a_silent_client_is_forgotten_after_three_intervals_or_a_minute() -> None:
    for interval_ms, expiry_ms in ((1_000, 60_000), (30_000, 90_000)):
        instances = subscribed({"all": {"metrics": "*", "interval.ms": str(interval_ms)}})
        ask(instances)
        assert push(instances, 0) is ErrorCode.NONE
        assert len(instances.shown(expiry_ms - 1)) == 1
        assert instances.shown(expiry_ms) == []
        assert len(instances) == 0


def test_the_states_and_the_metrics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INSTANCES_MAX", 5)
    monkeypatch.setattr(module, "SHOWN_MAX", 3)
    monkeypatch.setattr(module, "SERIES_MAX", 2)
    instances = subscribed()
    data = report(*(metric(f"m{index}", 1.0) for index in range(4)))
    for number in range(200, 220):
        instance_id = number.to_bytes(16, "big")
        ask(instances, number, instance_id)
        assert push(instances, number, data, instance_id=instance_id) is ErrorCode.NONE
        shown = instances.shown(number)
        assert len(instances) <= 5
        assert len(shown) <= 3
        assert shown[-1][0] == instance_id
        assert all(len(one.series) == 2 for _, one in shown)
    assert instances.dropped_points == 2 * 20


# --- reports ---


def test_gauges_sums_and_histograms_are_read() -> None:
    data = report(
        metric("g", 1.5, labels={"topic": "t"}),
        metric("s", -3, SUM),
        metric("c", 4, SUM, CUMULATIVE),
        histogram("h", 2.5, [0.1, 1.0], [1, 0, 2]),
        field(1, b"unknown kind") + field(11, b""),
        resource={"group_id": "g1"},
    )
    group = (("group_id", "g1"),)
    assert [*points(data)] == [
        Point(name="g", labels=(*group, ("topic", "t")), value=1.5, is_delta=True),
        Point(name="s", labels=group, value=-3, is_sum=True, is_delta=True),
        Point(name="c", labels=group, value=4, is_sum=True),
        Point(name="h", labels=group, value=2.5, is_delta=True, buckets=((0.1, 1.0), (1, 0, 2))),
    ]


@pytest.mark.parametrize("bounds", [[1.0, 1.0], [2.0, 1.0], [1.0], [float(n) for n in range(70)]])
def test_a_histogram_whose_buckets_do_not_fit_is_left_out(bounds: list[float]) -> None:
    counts = [1] * (len(bounds) + (len(bounds) != 1))
    data = report(histogram("h", 1.0, bounds, counts), metric("g", 1.0))
    if len(bounds) == 1:
        assert len(counts) == len(bounds)
    assert [one.name for one in points(data)] == ["g"]


def test_a_value_since_the_start_is_the_sum_of_the_changes() -> None:
    instances = subscribed()
    ask(instances)
    for number in range(3):
        data = report(
            metric("d", 2, SUM), metric("c", 5 + number, SUM, CUMULATIVE),
            histogram("h", 1.0, [1.0], [1, 2]),
        )  # fmt: skip
        assert push(instances, number * 1_000, data) is ErrorCode.NONE
    values = {one.name: one for one in instances.shown(3_000)[0][1].series.values()}
    assert values["d"].value == 6
    assert values["c"].value == 7
    assert (values["h"].value, values["h"].buckets) == (3.0, ((1.0,), (3, 6)))


def test_a_report_of_a_million_fields_is_refused() -> None:
    with pytest.raises(MalformedReport, match=f"more than {otlp.FIELDS_MAX} fields"):
        list(points(field(1, b"\x08\x00" * 500_000)))


def test_a_changed_report_is_read_or_refused() -> None:
    """Each byte of a report, changed at random, and each length."""
    whole = report(
        metric("g", 1.5, labels={"topic": "t"}), histogram("h", 1.0, [1.0], [1, 2]),
        metric("s", 3, SUM), resource={"group_id": "g"},
    )  # fmt: skip
    random_ = random.Random(714)
    outcomes = set[bool]()
    for number in range(3_000):
        data = bytearray(whole)
        for _ in range(1 + number % 4):
            data[random_.randrange(len(data))] = random_.randrange(256)
        outcomes.add(_is_read(bytes(data)))
    assert outcomes == {True, False}
    for end in range(len(whole)):
        _is_read(whole[:end])


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    _is_read(data)
    _is_read(field(1, field(2, field(2, data))))


def _is_read(data: bytes) -> bool:
    try:
        found = [*points(data)]
    except MalformedReport:
        return False
    assert all(len(one.labels) <= otlp.LABELS_MAX for one in found)
    return True


# --- GET /metrics ---


def exposed(instances: ClientInstances) -> list[str]:
    text = "".join(lines(one.name, one.samples) for one in client_families(instances, 0))
    return text.splitlines()


def test_families_have_the_names_of_the_clients_metrics() -> None:
    instances = subscribed()
    ask(instances)
    push(instances, 0, report(
        metric("org.apache.kafka.consumer.lag", 7.0, labels={"topic": "a\"b", "0x": "1"}),
        metric("org.apache.kafka.producer.record.send.total", 3, SUM),
        metric("my-own.total", 4.0),
        histogram("h", 1.0, [1.0], [1, 2]),
    ))  # fmt: skip
    me = 'client_instance_id="AAAAAAAAAAAAAAAAAAAA_w",client_id="orders"'
    assert exposed(instances) == [
        'quorumlog_telemetry_pushes_total{error="NONE"} 1',
        "quorumlog_telemetry_instances 1",
        "quorumlog_telemetry_dropped_points_total 0",
        rf'quorumlog_client_consumer_lag{{client_0x="1",topic="a\"b",{me}}} 7.0',
        f'quorumlog_client_h_bucket{{{me},le="1.0"}} 1',
        f'quorumlog_client_h_bucket{{{me},le="+Inf"}} 3',
        f"quorumlog_client_h_sum{{{me}}} 1.0",
        f"quorumlog_client_h_count{{{me}}} 3",
        f"quorumlog_client_my_own{{{me}}} 4.0",
        f"quorumlog_client_producer_record_send_total{{{me}}} 3",
    ]


def test_a_name_has_one_kind_and_families_are_bounded() -> None:
    instances = subscribed()
    for number, one in ((200, metric("x", 1.0)), (201, metric("x.total", 2, SUM))):
        instance_id = number.to_bytes(16, "big")
        ask(instances, 0, instance_id)
        push(instances, 0, report(one), instance_id=instance_id)
    assert [line for line in exposed(instances) if "client_x" in line] == [
        'quorumlog_client_x{client_instance_id="AAAAAAAAAAAAAAAAAAAAyA",client_id="orders"} 1.0'
    ]
    for number in range(300, 303):
        instance_id = number.to_bytes(16, "big")
        ask(instances, 0, instance_id)
        data = report(*(metric(f"{number}.{index}", 1.0) for index in range(400)))
        push(instances, 0, data, instance_id=instance_id)
    names = {line.partition("{")[0] for line in exposed(instances)}
    assert len(names) == FAMILIES_MAX + 3


# --- on a connection ---


async def test_a_broker_receives_the_reports_of_a_connection(tmp_path: Path) -> None:
    async with single_broker(tmp_path, replace(SETTINGS, client_telemetry=True)) as broker:
        served = with_telemetry(broker.server.context)
        vars(broker.server)["context"] = served
        configs = {"x": {"metrics": "*", "match": "client_software_name=tests,client_id=x"}}
        broker.controller.publish(ClusterDelta(), client_metrics=configs)
        peer = Peer(broker)
        names = {"client_software_name": "tests", "client_software_version": "1"}
        versions = await peer.ask(ApiVersionsRequest(**names), 3)
        assert {71, 72} <= {one.api_key for one in versions.api_keys}
        got = await peer.ask(GetTelemetrySubscriptionsRequest(), 0)
        assert got.error_code == ErrorCode.NONE
        assert got.accepted_compression_types == [4, 3, 1, 2]
        assert (got.requested_metrics, got.push_interval_ms) == (["*"], 300_000)
        assert (got.telemetry_max_bytes, got.delta_temporality) == (1_048_576, True)
        pushed = PushTelemetryRequest(
            client_instance_id=got.client_instance_id,
            subscription_id=got.subscription_id,
            metrics=REPORT,
        )
        assert (await peer.ask(pushed, 0)).error_code == ErrorCode.NONE
        again = await peer.ask(pushed, 0)
        assert again.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert served.telemetry is not None
        [(instance_id, instance)] = served.telemetry.shown(0)
        assert instance_id == got.client_instance_id
        assert [one.value for one in instance.series.values()] == [7.0]


async def test_telemetry_is_not_advertised_by_default(tmp_path: Path) -> None:
    async with single_broker(tmp_path) as broker:
        assert with_telemetry(broker.server.context) is broker.server.context
        versions = await Peer(broker).ask(ApiVersionsRequest(), 2)
        assert not {71, 72} & {one.api_key for one in versions.api_keys}
