"""Which settings of a configuration that was written for Apache Kafka a node takes or refuses."""

import pytest

from quorumlog.node import config
from quorumlog.node.config import ConfigError
from quorumlog.settings.kafka_names import (
    ALTERED_WITHOUT_EFFECT,
    GROUPS,
    WITHOUT_EFFECT,
    is_protection,
)

COMPLETE = {
    "node.id": "1",
    "cluster.id": "c",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "control.listener": "127.0.0.1:19092",
    "controller.quorum.voters": "1@127.0.0.1:19092",
    "log.dirs": "/tmp/data",
}
COMPOSE = {  # what the environment of a container usually sets, without the identity of the node
    "auto.create.topics.enable": "true",
    "controller.listener.names": "CONTROLLER",
    "group.initial.rebalance.delay.ms": "0",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "log.retention.hours": "168",
    "log.roll.hours": "24",
    "num.io.threads": "8",
    "num.network.threads": "3",
    "num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "socket.send.buffer.bytes": "102400",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
}


def test_a_containers_environment_starts_a_node() -> None:
    built = config.build({**COMPLETE, **COMPOSE})
    assert built.broker.num_partitions == 3
    assert built.log.segment_ms == 24 * 3_600_000
    ignored = config.without_effect({**COMPLETE, **COMPOSE})
    assert built.broker.log_retention_ms == 168 * 3_600_000
    assert "listener.security.protocol.map" in ignored
    assert not {*ignored} & {*COMPLETE, "num.partitions", "log.roll.hours", "log.retention.hours"}


def test_milliseconds_win_over_hours() -> None:
    built = config.build({**COMPLETE, "log.roll.hours": "24", "log.roll.ms": "5000"})
    assert built.log.segment_ms == 5000
    with pytest.raises(ConfigError, match=r"log\.roll\.hours=0: Value must be at least 1"):
        config.build({**COMPLETE, "log.roll.hours": "0"})
    with pytest.raises(ConfigError, match=r"log\.roll\.hours=1h: Not a number"):
        config.build({**COMPLETE, "log.roll.hours": "1h"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.keystore.location", "/keys"),
        ("sasl.enabled.mechanisms", "SCRAM-SHA-512"),
        ("listener.name.client.ssl.keystore.location", "/keys"),
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("super.users", "User:admin"),
        ("security.inter.broker.protocol", "SASL_SSL"),
        ("listener.security.protocol.map", "CONTROLLER:PLAINTEXT,CLIENT:SSL"),
    ],
)
def test_what_would_protect_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config.build({**COMPLETE, name: value})
    assert str(refused.value).startswith(f"{name}: not supported")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("num.io.thread", "num.io.threads"),
        ("log.rol.ms", "log.roll.ms"),
        ("transaction.state.log.replication", "transaction.state.log.replication.factor"),
    ],
)
def test_a_name_that_is_in_neither_is_still_refused(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting {name}; did you mean {near}?"):
        config.build({**COMPLETE, name: "1"})


def test_a_value_that_can_be_altered_is_checked_at_the_start_too() -> None:
    with pytest.raises(ConfigError, match=r"num\.io\.threads=x: Not a number"):
        config.build({**COMPLETE, "num.io.threads": "x"})
    built = config.build({**COMPLETE, "num.io.threads": "16"})
    assert built.static.texts["num.io.threads"] == "16"


def test_every_name_is_in_one_table_only() -> None:
    assert {*ALTERED_WITHOUT_EFFECT} <= {*WITHOUT_EFFECT}
    assert sum(len(names.split()) for names in GROUPS.values()) == len(WITHOUT_EFFECT)
    assert sorted(WITHOUT_EFFECT.keys() & {*config.known_names()}) == []
    assert not any(is_protection(name) for name in [*WITHOUT_EFFECT, *config.known_names()])
