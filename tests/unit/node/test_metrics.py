"""The parts of GET /metrics that need no node."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.broker.partitions.core.traffic import BrokerTraffic, TopicTraffic
from quorumlog.broker.server.stats import ApiStats
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, PartitionImage, TopicImage
from quorumlog.node.election_counts import ElectionCounts
from quorumlog.node.metrics.broker_families import REPLICAS_AT_ONCE, Replicas, histogram
from quorumlog.node.metrics.cluster_families import PARTITIONS_AT_ONCE, Cluster
from quorumlog.node.metrics.endpoint import is_local
from quorumlog.node.metrics.exposition import Family, accepts_open_metrics, head, labels, lines
from quorumlog.node.metrics.process_families import LoopShare
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicId, TopicPartition

OPEN, TEXT = "application/openmetrics-text", "text/plain"
AT = TopicPartition("t", 0)


def test_labels_are_escaped() -> None:
    assert labels({"topic": 'a"b\\c\nd', "partition": 3}) == r'{topic="a\"b\\c\nd",partition="3"}'


def test_the_total_of_a_counter_is_no_part_of_its_name_in_open_metrics() -> None:
    family = Family("records_total", "counter", "Records.", [("", 1), (labels({"topic": "t"}), 2)])
    assert head(family, is_open_metrics=False) == (
        "# HELP records_total Records.\n# TYPE records_total counter\n"
    )
    assert head(family, is_open_metrics=True) == "# HELP records Records.\n# TYPE records counter\n"
    assert lines(family.name, family.samples) == 'records_total 1\nrecords_total{topic="t"} 2\n'


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        ("", False),
        ("*/*", False),
        (TEXT, False),
        (f"{OPEN};version=1.0.0", True),
        (f"{OPEN}; q=0.5, {TEXT}; q=0.8", False),
        (f"{OPEN};version=1.0.0;q=0.8,{TEXT};version=0.0.4;q=0.5,*/*;q=0.1", True),
        (f"{OPEN};q=0", False),
        (f"{OPEN};q=much, {TEXT}", False),
        ("application/json", False),
    ],
)
def test_the_format_is_that_of_the_accept_header(accept: str, is_open: bool) -> None:
    assert accepts_open_metrics(accept) is is_open


def test_durations_are_cumulative_buckets() -> None:
    api = ApiStats()
    for seconds, count in ((0.00001, 1), (0.0001, 2), (0.5, 3), (3_600.0, 4), (1e9, 5)):
        api.answered(seconds, count)
    samples = dict(histogram({"request": "Fetch"}, api))

    def below(le: object) -> float:
        return samples["_bucket" + labels({"request": "Fetch", "le": le})]

    assert below(0.000064) == 1
    assert below(0.000128) == 3
    assert below(0.262144) == 3
    assert below(0.524288) == below(67.108864) == 6
    assert below("+Inf") == samples['_count{request="Fetch"}'] == 15
    assert samples['_sum{request="Fetch"}'] == pytest.approx(5e9 + 4 * 3_600 + 1.50021)
    api.unanswered, api.untimed = 2, 3
    assert api.requests == 20
    api.answered_alike(0.00001)
    assert (api.counts[4], api.untimed, api.requests) == (4, 0, 20)


def test_a_deleted_topic_stays_in_the_total() -> None:
    traffic = BrokerTraffic()
    first, second = traffic.of("first"), traffic.of("second")
    assert traffic.of("first") is first
    first.messages_in, second.messages_in, first.bytes_out = 3, 4, 10
    before = traffic.total()
    traffic.forget(["first", "never here"])
    assert traffic.total() == before == TopicTraffic(messages_in=7, bytes_out=10)
    assert traffic.topics == {"second": second}
    assert traffic.of("first") == TopicTraffic()


def image(
    leader_id: int, leader_epoch: int, *, topic_id: bytes = b"i", unclean: bool = False
) -> ClusterImage:
    partition = PartitionImage(
        leader_id=BrokerId(leader_id),
        leader_epoch=Epoch(leader_epoch),
        partition_epoch=Epoch(leader_epoch),
        replicas=(BrokerId(1), BrokerId(2)),
        isr=(BrokerId(1),),
        is_recovering=unclean,
    )
    topic = TopicImage(name="t", topic_id=TopicId(topic_id * 16), partitions=(partition,))
    return ClusterImage(topics={"t": topic})


def test_elections_are_counted_from_image_to_image() -> None:
    counts, changed = ElectionCounts(), ClusterDelta(partitions=frozenset({AT}))

    def published(after: ClusterImage) -> tuple[int, int]:
        counts.publish(changed, after)
        return counts.elections, counts.unclean

    assert published(image(1, 5)) == (0, 0)  # found at the start
    assert published(image(2, 6)) == (1, 0)
    assert published(image(2, 6)) == (1, 0)  # a change of the ISR
    assert published(image(-1, 7)) == (1, 0)  # no leader
    assert published(image(1, 8, unclean=True)) == (2, 1)
    assert published(image(1, 8)) == (2, 1)  # recovered
    assert published(image(1, 9, topic_id=b"j")) == (2, 1)  # another topic of this name
    assert published(replace(image(1, 9), topics={})) == (2, 1)


def test_the_idle_share_is_of_the_time_since_the_last_window() -> None:
    share = LoopShare((100.0, 1.0))
    assert share.idle(100.0, 1.0) == 1.0  # no time has passed
    assert share.idle(100.5, 1.4) == 1.0  # too short a window
    assert share.idle(104.0, 2.0) == pytest.approx(0.75)
    assert share.idle(104.2, 2.2) == pytest.approx(0.75)
    assert share.idle(106.0, 5.0) == 0.0  # another clock: never below 0


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        (None, False),
    ],
)
def test_a_client_of_another_machine_is_not_local(address: str | None, local: bool) -> None:
    assert is_local(address) is local


@pytest.mark.parametrize("shown_max", [1_000, 20_000])
def test_ten_thousand_partitions_are_counted_in_slices(shown_max: int) -> None:
    """Between two slices, requests are handled: none may look at more replicas than its share."""
    looked_at = 0

    class Driver:
        producers = ()

        @property
        def partition(self) -> SimpleNamespace:
            nonlocal looked_at
            looked_at += 1
            return SimpleNamespace(state=SimpleNamespace(role=None))

    count = 10_000
    partition = PartitionImage(
        leader_id=BrokerId(1),
        leader_epoch=Epoch(0),
        partition_epoch=Epoch(0),
        replicas=(BrokerId(1),),
        isr=(BrokerId(1),),
    )
    topic = TopicImage(name="t", topic_id=TopicId(bytes(16)), partitions=(partition,) * count)
    image = ClusterImage(topics={"t": topic})
    drivers = {TopicPartition("t", index): Driver() for index in range(count)}
    broker: Any = SimpleNamespace(replicas=SimpleNamespace(image=image, drivers=drivers))
    replicas, cluster, slices = Replicas(broker, shown_max), Cluster(image), 0
    for slices, _ in enumerate(replicas.count(), 1):
        assert looked_at == slices * REPLICAS_AT_ONCE
    assert slices == count // REPLICAS_AT_ONCE >= 20
    assert replicas.are_shown is (shown_max > count)
    assert len([*cluster.count()]) == count // PARTITIONS_AT_ONCE
    assert cluster.partitions == count
