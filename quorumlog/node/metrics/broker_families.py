"""The families of a broker, from its replicas and its Kafka listener; names as Kafka's JMX beans.

`kafka.server:type=ReplicaManager,name=LeaderCount` is `kafka_server_replicamanager_leadercount`:
the rules of Strimzi's and of jmx_exporter's examples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import accumulate
from operator import attrgetter
from typing import Final

from quorumlog.broker.partitions.core.data_path import ReadEnd
from quorumlog.broker.partitions.core.partition_state import PartitionState
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.broker.partitions.core.traffic import TopicTraffic
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.quotas.core.client_quotas import QuotaClient, QuotaKind
from quorumlog.broker.server.stats import ApiStats, ServerStats
from quorumlog.clock import monotonic_ms
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.node.metrics.exposition import Family, Sample, escaped, labels
from quorumlog.node.node_broker import NodeBroker
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.schemas import APIS

REPLICAS_AT_ONCE: Final = 500  # in one turn of the event loop: about half a millisecond
_TOPIC: Final = "kafka_server_brokertopicmetrics_"
_MANAGER: Final = "kafka_server_replicamanager_"
_PARTITION: Final = "kafka_cluster_partition_"
_EXPORTED: Final = "kafka_topic_partition_"
_FIRST_BUCKET: Final = 6  # 64 microseconds; counts below are in the same bucket
_LAST_BUCKET: Final = 26  # 67 seconds

_TRAFFIC: Final = {
    "messages_in": ("messagesin", "Records appended as the leader."),
    "bytes_in": ("bytesin", "Bytes of record batches appended as the leader."),
    "bytes_out": ("bytesout", "Bytes of record batches read for consumers."),
    "replication_bytes_in": ("replicationbytesin", "Bytes fetched from leaders."),
    "replication_bytes_out": ("replicationbytesout", "Bytes read for followers."),
    "produce_requests": ("totalproducerequests", "Produce requests, once for each partition."),
    "fetch_requests": ("totalfetchrequests", "Fetch requests, once for each partition."),
    "failed_produce_requests": (
        "failedproducerequests",
        "Batches refused for their records, or by the disk.",
    ),
    "failed_fetch_requests": ("failedfetchrequests", "Reads of partitions that the disk failed."),
}


def partition_labels(at: TopicPartition) -> str:
    """Return the labels of a partition."""
    return f'{{topic="{escaped(at.topic)}",partition="{at.partition}"}}'


def traffic_families(broker: NodeBroker) -> Iterator[Family]:
    """Yield the counters of records and requests, of the broker and by topic."""
    traffic = broker.replicas.traffic
    total, topics = traffic.total(), sorted(traffic.topics.items())
    for field in fields(TopicTraffic):
        name, documentation = _TRAFFIC[field.name]
        read = attrgetter(field.name)
        samples: list[Sample] = [("", read(total))]
        samples += [(labels({"topic": topic}), read(one)) for topic, one in topics]
        yield Family(f"{_TOPIC}{name}_total", "counter", documentation, samples)


def request_families(broker: NodeBroker) -> Iterator[Family]:
    """Yield the requests of all Kafka listeners, and the connections of each."""
    stats = broker.server.stats
    requests = [
        (labels({"request": _request(key)}), count) for key, count in sorted(stats.requests.items())
    ]
    name = "kafka_network_requestmetrics_requests_total"
    yield Family(name, "counter", "Requests that were handled.", requests)
    yield Family(
        "quorumlog_request_seconds",
        "histogram",
        "Seconds from the arrival of a request to its response.",
        list(_histograms(stats)),
    )
    open_now = [
        (labels({"listener": name, "networkProcessor": "0"}), count)
        for name, count in sorted(broker.server.connection_counts.items())
    ]
    name = "kafka_server_socket_server_metrics_connection_count"
    yield Family(name, "gauge", "Open connections.", open_now)
    for name, documentation, count in (
        ("accepted", "Connections accepted.", stats.connections),
        ("refused", "Connections refused: beyond a limit.", stats.connections_refused),
        ("failed", "Connections closed in their TLS handshake.", stats.handshakes_failed),
        ("idle", "Connections closed after connections.max.idle.ms.", stats.connections_idle),
        ("silent", "Connections closed to free the memory of responses.", stats.connections_silent),
    ):
        yield Family(f"quorumlog_connections_{name}_total", "counter", documentation, [("", count)])
    access = broker.server.context.access
    if access is not None:
        found = (("allowed", access.allowed), ("denied", access.denied))
        counts = [(labels({"result": result}), count) for result, count in found]
        name = "quorumlog_authorizations_total"
        yield Family(name, "counter", "Decisions of the authorizer.", counts)
    for name, count in (("incoming", stats.bytes_in), ("outgoing", stats.bytes_out)):
        full = f"kafka_server_socket_server_metrics_{name}_byte_total"
        yield Family(full, "counter", f"Bytes of {name} requests and responses.", [("", count)])
    for name, documentation, count in (
        ("successful_authentication", "Authentications by SASL.", stats.authentications),
        ("failed_authentication", "Failed authentications.", stats.authentications_failed),
        ("successful_reauthentication", "Renewed sessions of SASL.", stats.reauthentications),
        ("failed_reauthentication", "Failed renewals.", stats.reauthentications_failed),
        ("expired_connections_killed", "Connections closed: too old.", stats.sessions_ended),
    ):
        full = f"kafka_server_socket_server_metrics_{name}_total"
        yield Family(full, "counter", documentation, [("", count)])


def _request(api_key: int) -> str:
    api = APIS.get(api_key)
    return str(api_key) if api is None else api.name


def _histograms(stats: ServerStats) -> Iterator[Sample]:
    for api_key, api in sorted(stats.apis.items()):
        yield from histogram({"request": _request(api_key)}, api)


def histogram(where: dict[str, object], api: ApiStats) -> Iterator[Sample]:
    """Yield the samples of a histogram: buckets of powers of two of microseconds."""
    sums = [*accumulate(api.counts)]
    for bits in range(_FIRST_BUCKET, _LAST_BUCKET + 1):
        yield "_bucket" + labels({**where, "le": 2**bits / 1_000_000}), sums[bits]
    yield "_bucket" + labels({**where, "le": "+Inf"}), sums[-1]
    yield "_sum" + labels(where), api.total_s
    yield "_count" + labels(where), sums[-1]


_QUOTAS: Final = {
    QuotaKind.PRODUCE: ("produce_byte_rate", "Bytes of produce requests a second"),
    QuotaKind.FETCH: ("fetch_byte_rate", "Bytes of fetch responses a second"),
    QuotaKind.REQUEST: ("request_request_time", "% of a CPU for requests"),
}


def quota_families(broker: NodeBroker) -> Iterator[Family]:
    """Yield the rates of the clients that have a quota, over its window, and their delays."""
    rates = broker.server.context.quotas.clients.rates(monotonic_ms())
    for kind, (name, documentation) in _QUOTAS.items():
        samples = [(_client(owner), rate) for one, owner, rate, _ in rates if one is kind]
        delays = [(_client(owner), delay) for one, owner, _, delay in rates if one is kind]
        yield Family(f"kafka_server_{name}", "gauge", f"{documentation}.", samples)
        delayed = f"kafka_server_{kind.name.lower()}_throttle_time"
        yield Family(delayed, "gauge", "Delay of the next request, in ms.", delays)
    exempt: list[Sample] = [("", broker.server.context.quotas.clients.exempt_s)]
    documentation = "CPU of requests of brokers, beside a quota of request time."
    yield Family("quorumlog_quota_exempt_seconds_total", "counter", documentation, exempt)


def _client(owner: QuotaClient) -> str:
    return labels({"user": owner.user, "client_id": owner.client_id})


def waiting_families(broker: NodeBroker) -> Iterator[Family]:
    """Yield the requests that wait, the fetch sessions, the log directories and the cleaner."""
    replicas = broker.replicas
    cleaner, manager_of = replicas.ticks.cleaner, "kafka_log_logcleanermanager_"
    described, sessions = replicas.descriptions, replicas.fetch_sessions
    waiting = [
        (labels({"delayedOperation": "Fetch"}), replicas.fetches.delayed_count),
        (labels({"delayedOperation": "Produce"}), described.waiting_produces),
    ]
    cache_of = "kafka_server_fetchsessioncache_"
    for name, documentation, samples in (
        (
            "kafka_server_delayedoperationpurgatory_numdelayedoperations",
            "Requests that wait for records or for replicas.",
            waiting,
        ),
        (
            f"{cache_of}numincrementalfetchsessions",
            "Open fetch sessions (KIP-227).",
            [("", len(sessions))],
        ),
        (
            f"{cache_of}numincrementalfetchpartitionscached",
            "Partitions in all open fetch sessions.",
            [("", sessions.partition_count)],
        ),
        (
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Log directories that have failed.",
            [("", described.offline_directories)],
        ),
        (
            f"{manager_of}uncleanable_partitions_count",
            "Logs that are not compacted any more, because they cannot be read or written.",
            [("", cleaner.uncleanable_count)],
        ),
        (
            f"{manager_of}time_since_last_run_ms",
            "Milliseconds since the cleaner has looked at all logs.",
            [("", monotonic_ms() - cleaner.last_pass_ms)],
        ),
    ):
        yield Family(name, "gauge", documentation, samples)
    yield Family(
        "quorumlog_log_cleaner_removed_records_total",
        "counter",
        "Records that compaction has removed.",
        [("", cleaner.removed_count)],
    )


Led = tuple[str, PartitionDriver, PartitionImage]
"""The labels of a partition that this broker leads, and its parts."""


class Replicas:
    """The replicas of a broker, as of the start of a scrape.

    Counts are of the partitions that this broker leads, except `producers`. `led` is complete, with
    labels if there are samples of each partition (at most `shown_max`), after `count`.
    """

    def __init__(self, broker: NodeBroker, shown_max: int) -> None:
        self.broker: Final = broker
        self.drivers: Final = list(broker.replicas.drivers.items())
        self.are_shown: Final = len(self.drivers) <= shown_max
        self.led: Final[list[Led]] = []
        self._labels: Final[dict[TopicPartition, str]] = {}
        self.under_replicated = self.under_min_isr = self.at_min_isr = self.reassigning = 0
        self.producers = 0

    def count(self) -> Iterator[None]:
        """Count them; between the steps of this iterator, other work may be done."""
        image = self.broker.replicas.image
        for number, (at, driver) in enumerate(self.drivers, 1):
            self.producers += len(driver.producers)
            if self.are_shown:
                self._labels[at] = partition_labels(at)
            partition, state = image.partition(at), driver.partition.state
            role = state.role
            if isinstance(role, Leader) and partition is not None:
                self.led.append((self._labels.get(at, ""), driver, partition))
                in_sync, replicas = len(role.isr), _replication_factor(partition)
                least = min(state.min_insync_replicas, replicas)
                self.under_replicated += in_sync < replicas
                self.under_min_isr += in_sync < least
                self.at_min_isr += in_sync == least
                self.reassigning += partition.is_reassigned
            if number % REPLICAS_AT_ONCE == 0:
                yield

    def families(self) -> Iterator[Family]:
        """Yield the counts."""
        replicas = self.broker.replicas
        for name, documentation, value in (
            ("leadercount", "Partitions that this broker leads.", len(self.led)),
            ("partitioncount", "Replicas on this broker.", len(self.drivers)),
            ("underreplicatedpartitions", "Led, with replicas outside the ISR.",
             self.under_replicated),
            ("underminisrpartitioncount", "Led, with an ISR below min.insync.replicas.",
             self.under_min_isr),
            ("atminisrpartitioncount", "Led, with an ISR of min.insync.replicas.",
             self.at_min_isr),
            ("reassigningpartitions", "Led, with a reassignment in progress.", self.reassigning),
            ("offlinereplicacount", "Replicas whose logs have failed.",
             replicas.descriptions.offline_replicas),
            ("produceridcount", "Producer ids in the logs of this broker.", self.producers),
        ):  # fmt: skip
            yield Family(f"{_MANAGER}{name}", "gauge", documentation, [("", value)])
        proposals = replicas.proposals
        for name, count in (("shrinks", proposals.shrinks), ("expands", proposals.expands)):
            text = f"ISR {name} of led partitions, committed by the controller."
            yield Family(f"{_MANAGER}isr{name}_total", "counter", text, [("", count)])

    def partition_families(self) -> Iterator[Family]:
        """Yield the families with a sample for each led partition, or for each replica."""
        led = self.led
        states = [(at, driver.partition.state, image) for at, driver, image in led]
        sizes = [(at, len(state.isr), _least_isr(state, image)) for at, state, image in states]
        # A thread may have a log, to truncate it.
        drivers = [pair for pair in self.drivers if not pair[1].is_truncating]
        logs = [(self._labels[at], driver.log) for at, driver in drivers]
        for name, documentation, samples in (
            ("replicascount", "Replicas.",
             ((at, _replication_factor(image)) for at, _, image in led)),
            ("insyncreplicascount", "Members of the ISR.",
             ((at, size) for at, size, _ in sizes)),
            ("underminisr", "1: the ISR is below min.insync.replicas.",
             ((at, int(size < least)) for at, size, least in sizes)),
            ("atminisr", "1: the ISR has min.insync.replicas members.",
             ((at, int(size == least)) for at, size, least in sizes)),
            ("laststableoffsetlag", "Records that open transactions hold back.",
             ((at, max(driver.end(ReadEnd.HIGH_WATERMARK) - driver.end(ReadEnd.LAST_STABLE), 0))
              for at, driver, _ in led)),
        ):  # fmt: skip
            yield Family(f"{_PARTITION}{name}", "gauge", documentation, samples)
        for name, documentation, samples in (
            ("size", "Bytes of the segments.", ((at, log.size) for at, log in logs)),
            ("logendoffset", "The next offset.", ((at, log.log_end_offset) for at, log in logs)),
            ("logstartoffset", "The first offset.",
             ((at, log.log_start_offset) for at, log in logs)),
            ("numlogsegments", "Segments.",
             ((at, len(log.segment_base_offsets)) for at, log in logs)),
        ):  # fmt: skip
            yield Family(f"kafka_log_log_{name}", "gauge", documentation, samples)


def exported_families(
    led: Sequence[Led], leaderless: Sequence[tuple[str, PartitionImage]]
) -> Iterator[Family]:
    """Yield kafka_exporter's families of partitions: of those led here, and the `leaderless`.

    The leader's node alone has a partition, so that sums over all nodes are right.
    """
    images = [*((at, image) for at, _, image in led), *leaderless]
    in_sync = [(at, len(driver.partition.state.isr)) for at, driver, _ in led]
    in_sync += [(at, len(image.isr)) for at, image in leaderless]
    for name, documentation, samples in (
        ("current_offset", "The high watermark.",
         ((at, driver.partition.state.high_watermark) for at, driver, _ in led)),
        ("oldest_offset", "The first offset.",
         ((at, driver.partition.state.log_start_offset) for at, driver, _ in led)),
        ("replicas", "Replicas.", ((at, _replication_factor(one)) for at, one in images)),
        ("in_sync_replica", "Members of the ISR.", in_sync),
        ("leader", "The id of the leader; -1: none.",
         ((at, one.leader_id) for at, one in images)),
        ("leader_is_preferred", "1: the leader is the first replica.",
         ((at, int(one.leader_id == one.replicas[0])) for at, one in images)),
        ("under_replicated_partition", "1: a replica is outside the ISR.",
         ((at, int(size < _replication_factor(one)))
          for (at, one), (_, size) in zip(images, in_sync, strict=True))),
    ):  # fmt: skip
        yield Family(f"{_EXPORTED}{name}", "gauge", documentation, samples)


def _replication_factor(partition: PartitionImage) -> int:
    """Return the number of replicas; during a reassignment, the number before it (KIP-455)."""
    return len(partition.replicas) - len(partition.adding_replicas)


def _least_isr(state: PartitionState, partition: PartitionImage) -> int:
    """Return min.insync.replicas, or the number of replicas if it is lower."""
    return min(state.min_insync_replicas, _replication_factor(partition))
