"""GET /metrics of real nodes: the values, the two formats, and the files for Grafana and alerts."""

import http.client
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path

import confluent_kafka
import pytest

from quorumlog import LocalCluster
from quorumlog.broker.server.stats import UNTIMED_MAX
from quorumlog.client import NewTopic, TopicPartition
from quorumlog.client.sync import SyncAdmin, SyncConsumer, SyncProducer
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("metrics")]
TOPIC, GROUP, COUNT, CONSUMED, PARTITIONS = "orders", "billing", 60, 24, 3
LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?P<labels>\{.*\})? (?P<value>\S+)")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
OPEN_METRICS = "application/openmetrics-text"

Scrape = Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]
"""By the name of a sample: its labels, sorted, and its value."""


def get(address: str, accept: str = "") -> tuple[str, str]:
    """Return the content type and the text of GET /metrics."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", "/metrics", headers={"Accept": accept} if accept else {})
        response = connection.getresponse()
        assert response.status == 200
        return response.headers["Content-Type"], response.read().decode()
    finally:
        connection.close()


def parse(text: str, *, is_open_metrics: bool = False) -> Scrape:
    """Parse strictly: each sample below the lines of its family, each family and sample once."""
    found: defaultdict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
    family, kind, seen = "", "", set[str]()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family, documentation = line.removeprefix("# HELP ").split(" ", 1)
            assert documentation
            assert family not in seen
            seen.add(family)
        elif line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split(" ")
            assert name == family
            assert kind in {"counter", "gauge", "histogram"}
        elif line != "# EOF":
            match = LINE.fullmatch(line)
            assert match is not None, line
            suffixes = {
                "counter": {"_total" if is_open_metrics else ""},
                "gauge": {""},
                "histogram": {"_bucket", "_sum", "_count"},
            }[kind]
            assert match["name"] in {family + suffix for suffix in suffixes}
            assert kind != "counter" or match["name"].endswith("_total")
            where = tuple(sorted(LABEL.findall(match["labels"] or "")))
            assert where not in found[match["name"]], line
            found[match["name"]][where] = float(match["value"])
    return found


def scrape(cluster: LocalCluster, node_id: int) -> Scrape:
    return parse(get(cluster.spec.control_address(cluster.spec.node(node_id)))[1])


def scrape_all(cluster: LocalCluster) -> dict[int, Scrape]:
    return {node.id: scrape(cluster, node.id) for node in cluster.nodes}


def total(scrapes: Mapping[int, Scrape], name: str, **labels: object) -> float:
    """Return the sum of the samples of all nodes that have these labels."""
    wanted = {(label, str(value)) for label, value in labels.items()}
    return sum(
        value
        for found in scrapes.values()
        for where, value in found.get(name, {}).items()
        if wanted <= {*where}
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes, with records of a topic that a group has consumed in part."""
    config = {
        "client.telemetry": "true",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with LocalCluster(tmp_path_factory.mktemp("metrics"), nodes=3, config=config) as cluster:
        with SyncAdmin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])
        with SyncProducer(cluster.bootstrap, acks="all") as producer:
            for index in range(COUNT):
                producer.send(TOPIC, b"%d" % index, partition=index % PARTITIONS)
            producer.flush()
        with SyncConsumer(
            cluster.bootstrap, group_id=GROUP, auto_offset_reset="earliest"
        ) as consumer:
            each = CONSUMED // PARTITIONS
            consumer.commit({TopicPartition(TOPIC, index): each for index in range(PARTITIONS)})
        yield cluster


def test_records_and_requests_are_counted(cluster: LocalCluster) -> None:
    scrapes = scrape_all(cluster)
    prefix = "kafka_server_brokertopicmetrics_"
    assert total(scrapes, f"{prefix}messagesin_total", topic=TOPIC) == COUNT
    size = total(scrapes, f"{prefix}bytesin_total", topic=TOPIC)
    assert size > COUNT
    assert total(scrapes, f"{prefix}replicationbytesin_total", topic=TOPIC) == 2 * size
    assert total(scrapes, f"{prefix}totalproducerequests_total", topic=TOPIC) >= PARTITIONS
    assert total(scrapes, f"{prefix}failedproducerequests_total", topic=TOPIC) == 0
    for found in scrapes.values():
        by_topic = found[f"{prefix}messagesin_total"]
        assert by_topic[()] == sum(value for where, value in by_topic.items() if where)
        (produces,) = (
            value
            for where, value in found["quorumlog_request_seconds_count"].items()
            if where == (("request", "Produce"),)
        )
        buckets = [
            value
            for where, value in found["quorumlog_request_seconds_bucket"].items()
            if ("request", "Produce") in where
        ]
        assert produces > 0
        assert buckets == sorted(buckets)
        assert buckets[-1] == produces
    handled = total(scrapes, "kafka_network_requestmetrics_requests_total", request="Produce")
    timed = total(scrapes, "quorumlog_request_seconds_count", request="Produce")
    assert 0 <= handled - timed < len(scrapes) * UNTIMED_MAX


def test_each_partition_is_on_the_node_of_its_leader(cluster: LocalCluster) -> None:
    scrapes = scrape_all(cluster)
    for index in range(PARTITIONS):
        where = {"topic": TOPIC, "partition": index}
        leader = total(scrapes, "kafka_topic_partition_leader", **where)
        holders = [
            node_id
            for node_id, found in scrapes.items()
            if total({node_id: found}, "kafka_topic_partition_replicas", **where)
        ]
        assert holders == [leader]
        for name, value in (
            ("kafka_topic_partition_current_offset", COUNT // PARTITIONS),
            ("kafka_topic_partition_oldest_offset", 0),
            ("kafka_topic_partition_replicas", 3),
            ("kafka_topic_partition_in_sync_replica", 3),
            ("kafka_topic_partition_under_replicated_partition", 0),
            ("kafka_cluster_partition_insyncreplicascount", 3),
            ("kafka_cluster_partition_laststableoffsetlag", 0),
            ("kafka_log_log_logendoffset", 3 * COUNT // PARTITIONS),
            ("kafka_log_log_numlogsegments", 3),
        ):
            assert total(scrapes, name, **where) == value, name
    assert total(scrapes, "kafka_topic_partitions", topic=TOPIC) == PARTITIONS
    assert total(scrapes, "kafka_brokers") == 3
    assert total(scrapes, "kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert total(scrapes, "kafka_server_kafkaserver_brokerstate") == 3 * 3


def test_the_lag_is_that_of_the_leaders(cluster: LocalCluster) -> None:
    scrapes = scrape_all(cluster)
    where = {"consumergroup": GROUP, "topic": TOPIC}
    assert total(scrapes, "kafka_consumergroup_current_offset_sum", **where) == CONSUMED
    assert total(scrapes, "kafka_consumergroup_lag_sum", **where) == COUNT - CONSUMED
    for index in range(PARTITIONS):
        lag = total(scrapes, "kafka_consumergroup_lag", **where, partition=index)
        assert lag == (COUNT - CONSUMED) // PARTITIONS
    having = [found for found in scrapes.values() if found.get("kafka_consumergroup_members")]
    assert len(having) == 1  # the coordinator's node


def test_open_metrics_is_served_to_clients_that_prefer_it(cluster: LocalCluster) -> None:
    address = cluster.spec.control_address(cluster.spec.node(1))
    kind, text = get(
        address, f"{OPEN_METRICS};version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    )
    assert kind.startswith(f"{OPEN_METRICS}; version=1.0.0")
    assert text.endswith("# EOF\n")
    names = parse(text, is_open_metrics=True).keys()
    kind, text = get(address)
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert names == parse(text).keys()


def about_metrics(admin: SyncAdmin) -> Callable[[], list[str]]:
    """Return a function that lists the subscriptions of the cluster."""
    return lambda: [
        one.name for one in admin.list_config_resources() if one.kind == "client_metrics"
    ]


async def test_clients_report_their_own_metrics(cluster: LocalCluster) -> None:
    """librdkafka does so without a setting of its own (KIP-714)."""
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.alter_configs(
            "client_metrics",
            "producers",
            {
                "metrics": "org.apache.kafka.producer.",
                "interval.ms": "100",
                "match": "client_id=me",
            },
        )
        # Another broker may answer, which has the change a moment later.
        listed = about_metrics(admin)
        await until(lambda: listed() == ["producers"])
    producers = [
        confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "client.id": name})
        for name in ("me", "other")
    ]

    def seen() -> bool:
        for producer in producers:
            producer.produce("reported", b"x", partition=0)
            producer.poll(0.02)
        scrapes = scrape_all(cluster)
        return (
            total(scrapes, "quorumlog_client_producer_request_latency_max", client_id="me") > 0
            and total(scrapes, "quorumlog_telemetry_pushes_total", error="NONE") > 0
        )

    await until(seen)
    names = {
        dict(where)["client_id"]
        for found in scrape_all(cluster).values()
        for name, samples in found.items()
        if name.startswith("quorumlog_client_")
        for where in samples
    }
    assert names == {"me"}
    for producer in producers:
        producer.flush()


KEYWORDS = {"sum", "max", "rate", "increase", "delta", "histogram_quantile", "by", "and", "or"}


def names_in(expression: str) -> set[str]:
    """Return the names of the families in an expression of PromQL."""
    bare = re.sub(r"\{[^}]*\}|\[\w+\]|by \([^)]*\)", "", expression)
    return {*re.findall(r"[a-zA-Z_:][\w:]*", bare)} - KEYWORDS


def expressions() -> dict[str, str]:
    directory = files("quorumlog.node.metrics")
    board = json.loads((directory / "grafana.json").read_text())
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in board["panels"]
        for target in panel["targets"]
    }
    rules = (directory / "alerts.yml").read_text()
    alerts = zip(re.findall(r"alert: (\w+)", rules), re.findall(r"expr: (.+)", rules), strict=True)
    return found | dict(alerts)


def test_each_expression_names_families_with_samples(cluster: LocalCluster) -> None:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for each in scrape_all(cluster).values():
        for name, samples in each.items():
            for where in samples:
                found[name] |= {label for label, _ in where}
    named = expressions()
    assert len(named) > 30
    for title, expression in named.items():
        names = names_in(expression)
        assert names
        assert names <= found.keys(), title
        used = {
            label.strip()
            for group in re.findall(r"by \(([^)]*)\)", expression)
            for label in group.split(",")
        }
        for name in names:
            assert used <= found[name] | {"instance"}, title


def names_on(page: str) -> set[str]:
    """Return the families in a page: `a_{b,c}_total{label}` is a_b_total and a_c_total."""
    found = set[str]()
    for code in re.findall(r"`((?:kafka|quorumlog|process)_[^`]*)`", page):
        match = re.match(r"(\w*)\{([\w,]+)\}(\w*)", code)
        if match is not None and (match[1].endswith("_") or match[3]):  # else: labels
            found |= {match[1] + middle + match[3] for middle in match[2].split(",")}
        else:
            found.add(code.partition("{")[0])
    return {name for name in found if not name.endswith("_")}  # a prefix


def test_the_page_lists_the_families_of_a_scrape(cluster: LocalCluster) -> None:
    page = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    described, _, _ = page.partition("## Families of Kafka that are missing")
    texts = [get(cluster.spec.control_address(node))[1] for node in cluster.nodes]
    served = {name for text in texts for name in re.findall("# TYPE (.*) ", text)}
    served = {name for name in served if not name.startswith("quorumlog_client_")}
    assert names_on(described) <= served
    assert {name.rpartition("_")[2] for name in served - names_on(described)} == {
        *("replicascount", "insyncreplicascount", "underminisr", "atminisr", "laststableoffsetlag"),
        *("size", "logendoffset", "numlogsegments"),
    }  # behind their prefixes


def test_the_lag_of_a_silent_leader_is_left_out(cluster: LocalCluster) -> None:
    before = scrape_all(cluster)
    ((coordinator, found),) = [
        pair for pair in before.items() if pair[1].get("kafka_consumergroup_members")
    ]
    leaders = {
        index: int(total(before, "kafka_topic_partition_leader", topic=TOPIC, partition=index))
        for index in range(PARTITIONS)
    }
    silent = next(leader for leader in leaders.values() if leader != coordinator)
    cluster.pause(silent)
    try:
        after = {coordinator: scrape(cluster, coordinator)}
    finally:
        cluster.resume(silent)
    for index, leader in leaders.items():
        where = tuple(
            sorted({"consumergroup": GROUP, "topic": TOPIC, "partition": str(index)}.items())
        )
        lags = after[coordinator]["kafka_consumergroup_lag"]
        assert (where in lags) is (leader != silent)
        assert where in after[coordinator]["kafka_consumergroup_current_offset"]
    assert "kafka_consumergroup_lag_sum" in found
    assert "kafka_consumergroup_lag_sum" not in after[coordinator]


def test_samples_of_partitions_can_be_left_out(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, config={"metrics.partitions.max": "1"}) as cluster:

        def names() -> set[str]:
            found = scrape(cluster, 1)
            assert total({1: found}, "kafka_server_replicamanager_partitioncount") == partitions
            return {name for name in found if "partition_" in name or "kafka_log_log_" in name}

        with SyncAdmin(cluster.bootstrap) as admin:
            partitions = 1
            admin.create_topics([NewTopic("one", 1, 1)])
            assert len(names()) > 10
            partitions = 2
            admin.create_topics([NewTopic("two", 1, 1)])
            assert names() == {"quorumlog_partition_leader_elections_total"}


def sums(cluster: LocalCluster, *node_ids: int) -> dict[str, float]:
    """Return the sum of each family over these nodes and over all its samples."""
    scrapes = {node_id: scrape(cluster, node_id) for node_id in node_ids}
    names = {name for found in scrapes.values() for name in found}
    return {name: total(scrapes, name) for name in names}


UNDER = "kafka_server_replicamanager_underreplicatedpartitions"
UNDER_MIN = "kafka_server_replicamanager_underminisrpartitioncount"
FENCED = "kafka_controller_kafkacontroller_fencedbrokercount"
OFFLINE = "kafka_controller_kafkacontroller_offlinepartitionscount"
ACTIVE = "kafka_controller_kafkacontroller_activecontrollercount"
ELECTIONS = "quorumlog_partition_leader_elections_total"


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes, a topic on all of them, and a topic with one replica of each partition."""
    with LocalCluster(tmp_path, nodes=3, config={"min.insync.replicas": "3"}) as cluster:
        with SyncAdmin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3), NewTopic("single", PARTITIONS, 1)])
        calm = sums(cluster, 1, 2, 3)
        assert [calm[name] for name in (UNDER, UNDER_MIN, FENCED, OFFLINE)] == [0, 0, 0, 0]
        assert calm[ACTIVE] == 1
        yield cluster


async def test_the_kill_of_a_broker_is_seen_on_the_others(topics: LocalCluster) -> None:
    before = scrape(topics, 3)["kafka_topic_partition_leader"]
    alone = sum(("topic", "single") in where for where in before)
    assert alone > 0
    topics.kill(3)

    def seen() -> bool:
        now = sums(topics, 1, 2)
        found = [now[name] for name in (UNDER, UNDER_MIN, FENCED, OFFLINE)]
        return found == [PARTITIONS, PARTITIONS, 2, 2 * alone] and now[ELECTIONS] > 0

    await until(seen)
    scrapes = {node_id: scrape(topics, node_id) for node_id in (1, 2)}
    leaders = [
        value
        for found in scrapes.values()
        for where, value in found["kafka_topic_partition_leader"].items()
    ]
    assert len(leaders) == 2 * PARTITIONS  # also those that have no leader
    assert leaders.count(-1) == alone


async def test_the_pause_of_a_broker_is_seen_on_the_others(topics: LocalCluster) -> None:
    topics.pause(3)
    try:

        def seen() -> bool:
            now = sums(topics, 1, 2)
            return (now[UNDER], now[FENCED]) == (PARTITIONS, 2) and now[OFFLINE] > 0

        await until(seen)
    finally:
        topics.resume(3)
    await until(lambda: sums(topics, 1, 2, 3)[UNDER] == sums(topics, 1, 2, 3)[OFFLINE] == 0)
    assert sums(topics, 1, 2, 3)["kafka_server_replicamanager_isrexpands_total"] > 0


async def test_a_lost_majority_has_no_active_controller(topics: LocalCluster) -> None:
    topics.kill(2, 3)

    def seen() -> bool:
        found = scrape(topics, 1)
        (((_, state),),) = found["kafka_server_raftmetrics_current_state"]
        return sum(found[ACTIVE].values()) == 0 and state in {"prospective", "unattached"}

    await until(seen)
