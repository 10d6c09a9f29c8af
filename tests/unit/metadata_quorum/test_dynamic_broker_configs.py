"""Each setting that Apache Kafka 4.3 alters while a broker runs: which are altered here, and how.

Source: DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS, which KIP-226 began.
"""

import pytest

from quorumlog.metadata_quorum.config_changes import ConfigChange, ConfigChanges, ConfigOperation
from quorumlog.metadata_quorum.controller.requests import AlterConfigs
from quorumlog.settings.kafka_names import ALTERED_WITHOUT_EFFECT
from quorumlog.settings.servers import DYNAMIC
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.metadata_quorum.controllers import Bench

WITH_EFFECT = {
    "follower.replication.throttled.rate": "5",
    "leader.replication.throttled.rate": "5",
    "log.cleaner.backoff.ms": "5",
    "log.cleaner.delete.retention.ms": "5",
    "log.cleaner.io.max.bytes.per.second": "5.5",
    "log.cleaner.max.compaction.lag.ms": "5",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.cleaner.min.compaction.lag.ms": "5",
    "log.cleanup.policy": "compact",
    "log.flush.interval.messages": "5",
    "log.flush.interval.ms": "5",
    "log.index.interval.bytes": "5",
    "log.index.size.max.bytes": "50",
    "log.message.timestamp.after.max.ms": "5",
    "log.message.timestamp.before.max.ms": "5",
    "log.message.timestamp.type": "LogAppendTime",
    "log.retention.bytes": "5",
    "log.retention.ms": "5",
    "log.roll.ms": "5",
    "log.segment.bytes": "1048576",
    "max.connections": "5",
    "message.max.bytes": "5",
    "producer.id.expiration.ms": "5",
    "replica.alter.log.dirs.io.max.bytes.per.second": "5",
}
WITHOUT_EFFECT = {
    "background.threads": "5",
    "compression.gzip.level": "5",
    "compression.lz4.level": "5",
    "compression.type": "zstd",
    "compression.zstd.level": "5",
    "config.providers": "file",
    "follower.fetch.last.tiered.offset.enable": "true",
    "group.consumer.assignment.interval.ms": "5",
    "group.consumer.assignor.offload.enable": "false",
    "group.coordinator.cached.buffer.max.bytes": "600000",
    "group.share.assignment.interval.ms": "5",
    "group.share.assignor.offload.enable": "false",
    "group.streams.assignment.interval.ms": "5",
    "group.streams.assignor.offload.enable": "false",
    "log.cleaner.dedupe.buffer.size": "5",
    "log.cleaner.io.buffer.load.factor": "0.5",
    "log.cleaner.io.buffer.size": "5",
    "log.cleaner.threads": "2",
    "log.local.retention.bytes": "-2",
    "log.local.retention.ms": "-2",
    "log.preallocate": "true",
    "log.roll.jitter.ms": "5",
    "log.segment.delete.delay.ms": "5",
    "max.connection.creation.rate": "5",
    "max.connections.per.ip": "5",
    "max.connections.per.ip.overrides": "127.0.0.1:5",
    "metric.reporters": "org.example.Reporter",
    "num.io.threads": "16",
    "num.network.threads": "5",
    "num.recovery.threads.per.data.dir": "4",
    "num.replica.fetchers": "2",
    "remote.fetch.max.wait.ms": "5",
    "remote.list.offsets.request.timeout.ms": "5",
    "remote.log.index.file.cache.total.size.bytes": "5",
    "remote.log.manager.copier.thread.pool.size": "5",
    "remote.log.manager.copy.max.bytes.per.second": "5",
    "remote.log.manager.expiration.thread.pool.size": "5",
    "remote.log.manager.fetch.max.bytes.per.second": "5",
    "remote.log.manager.follower.thread.pool.size": "5",
    "remote.log.reader.threads": "5",
    "share.coordinator.cached.buffer.max.bytes": "600000",
}
CLUSTER_NUMBER = "min.insync.replicas"
FOR_ALL_ONLY = {
    "unclean.leader.election.enable": ("true", ErrorCode.INVALID_REQUEST),
    CLUSTER_NUMBER: ("2", ErrorCode.INVALID_CONFIG),
}
PROTECTION = [
    "listener.security.protocol.map",
    "principal.builder.class",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.principal.to.local.rules",
    "sasl.kerberos.service.name",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.mechanism.inter.broker.protocol",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.engine.factory.class",
    "ssl.key.password",
    "ssl.keymanager.algorithm",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
    "listener.name.internal.ssl.keystore.location",
    "authorizer.class.name",
    "super.users",
]
AT_THE_START = [
    "listeners",
    "node.id",
    "log.dirs",
    "log.retention.hours",
    "log.roll.hours",
    "queued.max.request.bytes",
    "socket.send.buffer.bytes",
    "group.consumer.regex.refresh.interval.ms",
]

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
    operation = ConfigOperation.SET if value is not None else ConfigOperation.DELETE
    change = ConfigChange(name=name, value=value, operation=operation)
    wanted = ConfigChanges(name=broker, changes=(change,), is_broker=True)
    [result] = bench.ask(AlterConfigs(topics=(wanted,))).results
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
@pytest.mark.parametrize("name", PROTECTION)
def test_a_setting_that_would_protect_is_refused_as_at_the_start(
    bench: Bench, broker: str, name: str
) -> None:
    code, message, _ = alter(bench, broker, name, "x")
    assert code is ErrorCode.INVALID_REQUEST
    assert message.startswith(f"{name}: not supported; quorumlog has no TLS, SASL or authorization")
    assert alter(bench, broker, name, None)[0] is ErrorCode.NONE


@BROKERS
@pytest.mark.parametrize("name", AT_THE_START)
def test_a_setting_that_is_read_at_the_start_is_refused(
    bench: Bench, broker: str, name: str
) -> None:
    """Its deletion changes nothing, and is granted, as in Kafka."""
    message = f"Cannot update these configs dynamically: Set({name})"
    assert alter(bench, broker, name, "5") == (ErrorCode.INVALID_REQUEST, message, {})
    assert alter(bench, broker, name, None)[0] is ErrorCode.NONE


@pytest.mark.parametrize("name", sorted(DYNAMIC))
def test_a_value_of_another_type_is_refused(bench: Bench, name: str) -> None:
    """Any text is a value of the settings that are texts or lists of texts."""
    code, message, _ = alter(bench, "", name, "x")
    if name in {"config.providers", "max.connections.per.ip.overrides", "metric.reporters"}:
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
