"""Each setting that Apache Kafka 4.3 alters while a broker runs: which are altered here, and how.

Source: DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS, which KIP-226 began.
"""

import pytest

from quorumlog.settings.kafka_names import ALTERED_WITHOUT_EFFECT
from quorumlog.settings.servers import DYNAMIC
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.metadata_quorum.controllers import Bench, deletion, setting

OTHERS = {  # the settings that 5 would not suit
    "compression.type": "zstd",
    "config.providers": "file",
    "follower.fetch.last.tiered.offset.enable": "true",
    "group.consumer.assignor.offload.enable": "false",
    "group.coordinator.cached.buffer.max.bytes": "600000",
    "group.share.assignor.offload.enable": "false",
    "group.streams.assignor.offload.enable": "false",
    "log.cleaner.io.buffer.load.factor": "0.5",
    "log.cleaner.io.max.bytes.per.second": "5.5",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.cleaner.threads": "2",
    "log.cleanup.policy": "compact",
    "log.index.size.max.bytes": "50",
    "log.local.retention.bytes": "-2",
    "log.local.retention.ms": "-2",
    "log.message.timestamp.type": "LogAppendTime",
    "log.preallocate": "true",
    "log.segment.bytes": "1048576",
    "max.connections.per.ip.overrides": "127.0.0.1:5",
    "metric.reporters": "org.example.Reporter",
    "num.io.threads": "16",
    "num.recovery.threads.per.data.dir": "4",
    "num.replica.fetchers": "2",
    "share.coordinator.cached.buffer.max.bytes": "600000",
}


def values_of(names: str) -> dict[str, str]:
    return {name: OTHERS.get(name, "5") for name in names.split()}


WITH_EFFECT = values_of("""
    compression.gzip.level compression.lz4.level compression.type compression.zstd.level
    follower.replication.throttled.rate leader.replication.throttled.rate log.cleaner.backoff.ms
    log.cleaner.delete.retention.ms log.cleaner.io.max.bytes.per.second
    log.cleaner.max.compaction.lag.ms log.cleaner.min.cleanable.ratio
    log.cleaner.min.compaction.lag.ms log.cleanup.policy log.flush.interval.messages
    log.flush.interval.ms log.index.interval.bytes log.index.size.max.bytes
    log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms
    log.message.timestamp.type log.retention.bytes log.retention.ms log.roll.jitter.ms log.roll.ms
    log.segment.bytes log.segment.delete.delay.ms max.connection.creation.rate max.connections
    max.connections.per.ip max.connections.per.ip.overrides message.max.bytes
    producer.id.expiration.ms replica.alter.log.dirs.io.max.bytes.per.second
""")
WITHOUT_EFFECT = values_of("""
    background.threads config.providers follower.fetch.last.tiered.offset.enable
    group.consumer.assignment.interval.ms group.consumer.assignor.offload.enable
    group.coordinator.cached.buffer.max.bytes group.share.assignment.interval.ms
    group.share.assignor.offload.enable group.streams.assignment.interval.ms
    group.streams.assignor.offload.enable log.cleaner.dedupe.buffer.size
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.threads
    log.local.retention.bytes log.local.retention.ms log.preallocate metric.reporters num.io.threads
    num.network.threads num.recovery.threads.per.data.dir num.replica.fetchers
    remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
    remote.log.index.file.cache.total.size.bytes remote.log.manager.copier.thread.pool.size
    remote.log.manager.copy.max.bytes.per.second remote.log.manager.expiration.thread.pool.size
    remote.log.manager.fetch.max.bytes.per.second remote.log.manager.follower.thread.pool.size
    remote.log.reader.threads share.coordinator.cached.buffer.max.bytes
""")
CLUSTER_NUMBER = "min.insync.replicas"
FOR_ALL_ONLY = {
    "unclean.leader.election.enable": ("true", ErrorCode.INVALID_REQUEST),
    CLUSTER_NUMBER: ("2", ErrorCode.INVALID_CONFIG),
}
PROTECTION = """
    principal.builder.class sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
    sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
    sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    ssl.cipher.suites ssl.engine.factory.class ssl.keymanager.algorithm ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm
    listener.name.internal.ssl.cipher.suites
"""
AT_THE_START = """
    listeners node.id log.dirs log.retention.hours log.roll.hours queued.max.request.bytes
    socket.send.buffer.bytes group.consumer.regex.refresh.interval.ms sasl.enabled.mechanisms
    sasl.jaas.config sasl.mechanism.inter.broker.protocol
    listener.name.internal.plain.sasl.jaas.config ssl.client.auth ssl.enabled.protocols
    ssl.endpoint.identification.algorithm ssl.key.password ssl.keystore.certificate.chain
    ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol
    ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
    listener.name.internal.ssl.keystore.location security.inter.broker.protocol
"""

BROKERS = pytest.mark.parametrize("broker", ["1", ""], ids=["one broker", "all brokers"])


@pytest.fixture
def bench() -> Bench:
    return Bench().start(1)


def alter(
    bench: Bench, broker: str, name: str, value: str | None
) -> tuple[ErrorCode, str, dict[str, str]]:
    """Set the value, or delete it; return the code, the message and the broker's settings.

    Without the number that the cluster has from its beginning (KIP-966).
    """
    change = deletion(name) if value is None else setting(name, value)
    result = bench.alter(broker, change, is_broker=True)
    configs = {one: text for one, text in result.configs.items() if one != CLUSTER_NUMBER}
    return result.error_code, result.error_message or "", configs


def test_the_tables_here_name_every_setting_that_is_altered() -> None:
    assert {*WITH_EFFECT, *WITHOUT_EFFECT, *FOR_ALL_ONLY} == {*DYNAMIC}
    ignored = {name for name, row in DYNAMIC.items() if row.without_effect}
    assert {*WITHOUT_EFFECT} == ignored >= {*ALTERED_WITHOUT_EFFECT}


@BROKERS
@pytest.mark.parametrize(("name", "value"), {**WITH_EFFECT, **WITHOUT_EFFECT}.items())
def test_it_is_altered_for_one_broker_and_for_all(
    bench: Bench, broker: str, name: str, value: str
) -> None:
    assert alter(bench, broker, name, value) == (ErrorCode.NONE, "", {name: value})
    assert alter(bench, broker, name, None) == (ErrorCode.NONE, "", {})


@pytest.mark.parametrize("name", FOR_ALL_ONLY)
def test_it_is_altered_for_all_brokers_only(bench: Bench, name: str) -> None:
    value, code = FOR_ALL_ONLY[name]
    assert alter(bench, "1", name, value)[0] is code
    assert alter(bench, "", name, value)[0] is ErrorCode.NONE


@BROKERS
@pytest.mark.parametrize("name", PROTECTION.split())
def test_a_setting_that_would_protect_is_refused_as_at_the_start(
    bench: Bench, broker: str, name: str
) -> None:
    code, message, _ = alter(bench, broker, name, "x")
    assert code is ErrorCode.INVALID_REQUEST
    assert message.startswith(f"{name}: not supported; quorumlog has no such")
    assert alter(bench, broker, name, None)[0] is ErrorCode.NONE


@BROKERS
@pytest.mark.parametrize("name", AT_THE_START.split())
def test_a_setting_that_is_read_at_the_start_is_refused(
    bench: Bench, broker: str, name: str
) -> None:
    """Its deletion changes nothing, and is granted, as in Kafka."""
    message = f"Cannot update these configs dynamically: [{name}]"
    assert alter(bench, broker, name, "5") == (ErrorCode.INVALID_REQUEST, message, {})
    assert alter(bench, broker, name, None)[0] is ErrorCode.NONE


@pytest.mark.parametrize("name", sorted(DYNAMIC))
def test_a_value_of_another_type_is_refused(bench: Bench, name: str) -> None:
    """Any text is a value of the settings that are texts or lists of texts."""
    code, message, _ = alter(bench, "", name, "x")
    if name in {"config.providers", "metric.reporters"}:
        assert code is ErrorCode.NONE
    else:
        assert code is ErrorCode.INVALID_REQUEST  # KAFKA-13609
        assert message.startswith(f"Invalid value x for configuration {name}: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num.io.threads", "0"),
        ("max.connections.per.ip", "-1"),
        ("group.coordinator.cached.buffer.max.bytes", "524287"),
        ("log.cleaner.io.buffer.load.factor", "0"),
    ],
)
def test_a_value_out_of_range_is_refused(bench: Bench, name: str, value: str) -> None:
    assert alter(bench, "", name, value)[0] is ErrorCode.INVALID_REQUEST
