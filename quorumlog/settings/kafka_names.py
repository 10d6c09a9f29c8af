"""Names of Apache Kafka's broker settings (4.x) that a node accepts without effect.

A `server.properties` or the environment of a container that was written for Apache Kafka must
start a node. So a node accepts such a name and warns. A name that Kafka alters while a broker runs
(KIP-226) has a type and a range here: it can be altered here, too, without effect. A node refuses a
setting of TLS, SASL or authorization whose value enables protection, because it has none.
Defaults of topics are in `topics`, with or without effect.
Source: Kafka's documentation, "Broker Configs" of 4.0 to 4.3.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from quorumlog.settings import kinds
from quorumlog.settings.kinds import INT_MAX, LONG_MAX, ConfigType, Kind
from quorumlog.settings.topics import NO_TIERS

# Subject -> names. A name that gets an effect must leave this table.
GROUPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "the cleaner is one thread, at half a core, with a fixed amount of memory": """
            log.cleaner.dedupe.buffer.size log.cleaner.enable log.cleaner.io.buffer.load.factor
            log.cleaner.io.buffer.size log.cleaner.threads""",
        "an allowed unclean election happens immediately": """
            unclean.leader.election.interval.ms""",
        "a node has one event loop, and flushes when replication requires it": """
            background.threads num.io.threads num.network.threads num.recovery.threads.per.data.dir
            num.replica.alter.log.dirs.threads num.replica.fetchers log.dir.failure.timeout.ms
            log.flush.offset.checkpoint.interval.ms log.flush.start.offset.checkpoint.interval.ms
            log.initial.task.delay.ms queued.max.request.bytes
            replica.socket.receive.buffer.bytes socket.listen.backlog.size
            socket.receive.buffer.bytes socket.send.buffer.bytes""",
        "all connections share one limit": """
            socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms""",
        "controllers listen on control.listener": """
            controller.listener.names early.start.listeners""",
        "transactional ids have deadlines, not scans; two-phase commit is not supported": """
            transaction.remove.expired.transaction.cleanup.interval.ms
            transaction.two.phase.commit.enable""",
        "topic expressions are evaluated when topics change": """
            group.consumer.regex.refresh.interval.ms""",
        "a coordinator writes immediately, in the event loop": """
            group.coordinator.append.linger.ms group.coordinator.cached.buffer.max.bytes
            group.coordinator.new.enable group.coordinator.threads""",
        "a coordinator computes an assignment immediately, in a separate thread": """
            group.consumer.assignment.interval.ms group.consumer.assignor.offload.enable
            group.consumer.max.assignment.interval.ms group.consumer.min.assignment.interval.ms
            group.coordinator.background.threads""",
        "share groups and streams groups are not supported": """
            group.share.assignment.interval.ms group.share.assignor.offload.enable
            group.share.assignors group.share.delivery.count.limit
            group.share.max.assignment.interval.ms group.share.min.assignment.interval.ms
            group.streams.assignment.interval.ms group.streams.assignor.offload.enable
            group.streams.max.assignment.interval.ms group.streams.min.assignment.interval.ms
            group.share.enable group.share.heartbeat.interval.ms
            group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks
            group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms
            group.share.max.share.sessions group.share.max.size
            group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
            group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
            group.share.partition.max.record.locks group.share.persister.class.name
            group.share.record.lock.duration.ms group.share.session.timeout.ms
            group.streams.heartbeat.interval.ms group.streams.initial.rebalance.delay.ms
            group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms
            group.streams.max.size group.streams.max.standby.replicas
            group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
            group.streams.num.standby.replicas group.streams.session.timeout.ms
            share.coordinator.append.linger.ms share.coordinator.cached.buffer.max.bytes
            share.coordinator.cold.partition.snapshot.interval.ms
            share.coordinator.load.buffer.size
            share.coordinator.snapshot.update.records.per.snapshot
            share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
            share.coordinator.state.topic.num.partitions
            share.coordinator.state.topic.prune.interval.ms
            share.coordinator.state.topic.replication.factor
            share.coordinator.state.topic.segment.bytes share.coordinator.threads
            share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
            offsets.topic.compression.codec offsets.commit.required.acks""",
        "the metadata log rolls by size; a stopping node hands over its leaderships": """
            controlled.shutdown.enable controlled.shutdown.max.retries
            controlled.shutdown.retry.backoff.ms controller.performance.always.log.threshold.ms
            controller.performance.sample.period.ms controller.quorum.append.linger.ms
            controller.socket.timeout.ms
            metadata.log.segment.ms
            metadata.log.segment.min.bytes metadata.max.idle.interval.ms
            server.max.startup.time.ms""",
        "throttled replicas have no windows of time, and quotas no plug-in": """
            alter.log.dirs.replication.quota.window.num
            alter.log.dirs.replication.quota.window.size.seconds client.quota.callback.class
            replication.quota.window.num replication.quota.window.size.seconds""",
        "delayed requests wait in other structures than Kafka's": """
            delete.records.purgatory.purge.interval.requests
            fetch.purgatory.purge.interval.requests producer.purgatory.purge.interval.requests
            request.timeout.ms broker.id.generation.enable reserved.broker.max.id""",
        "plug-ins, metrics and telemetry of the JVM": """
            alter.config.policy.class.name auto.include.jmx.reporter
            create.topic.policy.class.name metric.reporters
            metrics.num.samples metrics.recording.level metrics.sample.window.ms
            kafka.metrics.polling.interval.secs kafka.metrics.reporters
            log.message.downconversion.enable config.providers unstable.api.versions.enable
            unstable.feature.versions.enable""",
        NO_TIERS: """
            follower.fetch.last.tiered.offset.enable
            remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
            remote.log.index.file.cache.total.size.bytes
            remote.log.manager.copier.thread.pool.size
            remote.log.manager.copy.max.bytes.per.second remote.log.manager.copy.quota.window.num
            remote.log.manager.copy.quota.window.size.seconds
            remote.log.manager.expiration.thread.pool.size
            remote.log.manager.fetch.max.bytes.per.second
            remote.log.manager.fetch.quota.window.num
            remote.log.manager.fetch.quota.window.size.seconds
            remote.log.manager.follower.thread.pool.size remote.log.manager.task.interval.ms
            remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
            remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size
            remote.log.metadata.custom.metadata.max.bytes
            remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
            remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
            remote.log.reader.max.pending.tasks remote.log.reader.threads
            remote.log.storage.manager.class.name remote.log.storage.manager.class.path
            remote.log.storage.manager.impl.prefix""",
        "removed in Kafka 4.0": """
            control.plane.listener.name inter.broker.protocol.version
            log.message.format.version log.message.timestamp.difference.max.ms zookeeper.connect
            zookeeper.connection.timeout.ms zookeeper.max.in.flight.requests
            zookeeper.metadata.migration.enable zookeeper.session.timeout.ms zookeeper.set.acl""",
    }
)

WITHOUT_EFFECT: Final[Mapping[str, str]] = MappingProxyType(
    {name: reason for reason, names in GROUPS.items() for name in names.split()}
)
"""Name -> reason why it has no effect."""


class KindAndDefault(NamedTuple):
    """The type, range and default that Kafka documents for a setting."""

    kind: Kind[Any]
    default: str


def _int(default: int, least: int = 1) -> KindAndDefault:
    return KindAndDefault(kinds.whole(ConfigType.INT, least, INT_MAX), str(default))


def _long(default: int, least: int = 1) -> KindAndDefault:
    return KindAndDefault(kinds.whole(ConfigType.LONG, least, LONG_MAX), str(default))


def _flag(default: str) -> KindAndDefault:
    return KindAndDefault(kinds.FLAG, default)


_NO_ITEMS: Final = KindAndDefault(kinds.TEXTS, "")
_BUFFER: Final = _int(1_048_588, 524_288)

ALTERED_WITHOUT_EFFECT: Final[Mapping[str, KindAndDefault]] = MappingProxyType(
    {
        "background.threads": _int(10),
        "config.providers": _NO_ITEMS,
        "follower.fetch.last.tiered.offset.enable": _flag("false"),
        "group.consumer.assignment.interval.ms": _int(1000, 0),
        "group.consumer.assignor.offload.enable": _flag("true"),
        "group.coordinator.cached.buffer.max.bytes": _BUFFER,
        "group.share.assignment.interval.ms": _int(1000, 0),
        "group.share.assignor.offload.enable": _flag("true"),
        "group.streams.assignment.interval.ms": _int(1000, 0),
        "group.streams.assignor.offload.enable": _flag("true"),
        "log.cleaner.dedupe.buffer.size": _long(134_217_728),
        "log.cleaner.io.buffer.load.factor": KindAndDefault(kinds.POSITIVE, "0.9"),
        "log.cleaner.io.buffer.size": _int(524_288, 0),
        "log.cleaner.threads": _int(1, 0),
        "metric.reporters": _NO_ITEMS,
        "num.io.threads": _int(8),
        "num.network.threads": _int(3),
        "num.recovery.threads.per.data.dir": _int(2),
        "num.replica.fetchers": _int(1),
        "remote.fetch.max.wait.ms": _int(500),
        "remote.list.offsets.request.timeout.ms": _long(30_000),
        "remote.log.index.file.cache.total.size.bytes": _long(1_073_741_824),
        "remote.log.manager.copier.thread.pool.size": _int(10),
        "remote.log.manager.copy.max.bytes.per.second": _long(LONG_MAX),
        "remote.log.manager.expiration.thread.pool.size": _int(10),
        "remote.log.manager.fetch.max.bytes.per.second": _long(LONG_MAX),
        "remote.log.manager.follower.thread.pool.size": _int(2),
        "remote.log.reader.threads": _int(10),
        "share.coordinator.cached.buffer.max.bytes": _BUFFER,
    }
)
"""The names of WITHOUT_EFFECT that Kafka 4.3 alters while a broker runs: ALL_DYNAMIC_CONFIGS."""

_PROTECTION_PREFIXES: Final = ("ssl.", "sasl.", "listener.name.", "delegation.token.", "password.")
_PROTECTION_NAMES: Final = frozenset(
    {
        "connections.max.reauth.ms",
        "principal.builder.class",
        "security.providers",
        "zookeeper.ssl.client.enable",
    }
)
_PLAIN: Final = frozenset({"", "PLAINTEXT"})


NO_PROTECTION: Final = "not supported; quorumlog has no such protection, and would enforce nothing"


def is_protection(name: str) -> bool:
    """Whether a name is a setting of TLS, SASL, authorization or another protection."""
    return name in _PROTECTION_NAMES or name.startswith(_PROTECTION_PREFIXES)


def asks_for_nothing(value: str) -> bool:
    """Whether the value of a protection's setting means plain text: no protection."""
    return value.strip() in _PLAIN


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the candidate that resembles `name` most; None if none is similar.

    It compares only names of similar length and the same first letter: each costs 10 us.
    """
    from difflib import get_close_matches  # costs an import: only errors need it

    alike = [one for one in known if one[0] == name[:1] and abs(len(one) - len(name)) <= 3]
    return next(iter(get_close_matches(name, alike, n=1)), None)
