"""A node's configuration: its sources, its names, its secret, and the refusals."""

import logging
import re
from pathlib import Path

import pytest

from quorumlog.node import config
from quorumlog.node.config import ConfigError
from quorumlog.node.listeners import StartFailed
from quorumlog.node.node import read_secret
from quorumlog.node.node_broker import warn_of_missing_rights
from quorumlog.settings.authorization import STANDARD_AUTHORIZER
from quorumlog.settings.kafka_names import (
    ALTERED_WITHOUT_EFFECT,
    GROUPS,
    WITHOUT_EFFECT,
    is_protection,
)
from quorumlog.settings.listeners import ROWS

COMPLETE = {
    "node.id": "1",
    "cluster.id": "c",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "control.listener": "127.0.0.1:19092",
    "controller.quorum.voters": "1@127.0.0.1:19092,2@127.0.0.1:19093",
    "log.dirs": "/tmp/data",
}


def test_kafkas_names_reach_the_settings_they_name() -> None:
    built = config.build(
        {
            **COMPLETE,
            "replica.lag.time.max.ms": "777",
            "auto.create.topics.enable": "false",
            "controller.quorum.election.timeout.ms": "555",
            "broker.session.timeout.ms": "3333",
            "log.segment.bytes": "1048576",
            "log.roll.ms": "60000",
            "log.index.size.max.bytes": "4096",
        }
    )
    assert built.broker.replica_lag_time_max_ms == 777
    assert built.broker.auto_create_topics_enable is False
    assert built.quorum.controller_quorum_election_timeout_ms == 555
    assert built.controller.broker_session_timeout_ms == 3333
    assert built.log.segment_bytes == 1_048_576
    assert built.log.segment_ms == 60_000
    assert built.log.segment_index_bytes == 4096
    assert built.voters == {1: "127.0.0.1:19092", 2: "127.0.0.1:19093"}
    assert str(built.listeners.inter_broker_address) == "127.0.0.1:9092"


def test_a_controller_that_is_no_voter_yet_starts_with_addresses_to_ask() -> None:
    bootstrap = {"controller.quorum.bootstrap.servers": "a:1, b:2"}
    beside = config.build({**COMPLETE, **bootstrap, "node.id": "3"})
    assert (beside.bootstrap, sorted(beside.voters)) == (("a:1", "b:2"), [1, 2])
    alone = {name: value for name, value in COMPLETE.items() if not name.endswith("voters")}
    built = config.build({**alone, **bootstrap})
    assert (built.bootstrap, built.voters) == (("a:1", "b:2"), {})
    assert config.build(COMPLETE).bootstrap == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replica.lag.time.max": "1"}, "did you mean replica.lag.time.max.ms?"),
        ({"log.segment.ms": "1"}, "unknown setting log.segment.ms"),
        ({"log.segment.index.bytes": "12"}, "unknown setting log.segment.index.bytes"),
        ({"log.roll.ms": "0"}, ": Value must be at least 1"),
        ({"log.roll.hours": "0"}, ": Value must be at least 1"),
        ({"log.roll.hours": "1h"}, ": Not a number"),
        ({"num.io.threads": "x"}, ": Not a number"),
        ({"num.io.thread": "1"}, "unknown setting num.io.thread; did you mean num.io.threads?"),
        ({"log.rol.ms": "1"}, "unknown setting log.rol.ms; did you mean log.roll.ms?"),
        (
            {"transaction.state.log.replication": "1"},
            "did you mean transaction.state.log.replication.factor?",
        ),
        ({"num.partition": "3"}, "did you mean num.partitions?"),
        ({"num.partitions": "many"}, ": Not a number"),
        ({"auto.create.topics.enable": "yes"}, ": Expected value to be either true or false"),
        ({"node.id": ""}, "node.id is not set"),
        ({"node.id": "3"}, "node.id=3 is not in controller.quorum.voters"),
        ({"process.roles": "boss"}, "use broker, controller or both"),
        ({"process.roles": "broker"}, "node.id=1 is in controller.quorum.voters"),
        (
            {"process.roles": "broker", "controller.quorum.bootstrap.servers": "a:1"},
            "node.id=1 is in controller.quorum.voters",
        ),
        ({"node.id": "3"}, "needs controller.quorum.bootstrap.servers"),
        ({"controller.quorum.voters": ""}, "controller.quorum.voters is not set, nor is"),
        (
            {"controller.quorum.bootstrap.servers": "a:1,b"},
            "controller.quorum.bootstrap.servers=b: write it as host:port",
        ),
        (
            {"listeners": "SSL://h:1"},
            "the listener SSL: listener.name.ssl.ssl.keystore.location is",
        ),
        ({"ssl.keystore.location": "/keys"}, "but no listener has TLS; see listener.security"),
        ({"listener.name.client.ssl.keystore.location": "/k"}, "there is no listener CLIENT"),
        ({"security.inter.broker.protocol": "SASL_SSL"}, "it must be a listener of advertised"),
        ({"control.tls.ca.file": "ca.pem"}, "control.tls.certificate.file is not set: set all of"),
        ({"listeners": "127.0.0.1"}, "write it as host:port"),
        ({"control.listener": "127.0.0.1:99999"}, "write it as host:port"),
        ({"controller.quorum.voters": "127.0.0.1:1"}, "write it as id@host:port"),
        ({"controller.quorum.voters": "1@a:1,1@b:1"}, "1 is listed twice"),
        (
            {"controller.quorum.voters": "-1@a:1"},
            "controller.quorum.voters=-1: Value must be at least",
        ),
        ({"node.id": "-1"}, ": Value must be at least 0"),
        ({"node.id": "2147483648"}, "Value must be no more than 2147483647"),
        ({"offsets.topic.segment.bytes": "1048575"}, ": Value must be at least 1048576"),
        ({"num.partitions": "0"}, ": Value must be at least 1"),
        ({"num.partitions": "1_000"}, ": Not a number"),
        ({"num.partitions": "1" * 5000}, "1: Not a number"),
        ({"num.partitions": "2147483648"}, "Value must be no more than 2147483647"),
        ({"min.insync.replicas": "0"}, ": Value must be at least 1"),
        ({"broker.session.timeout.ms": "10s"}, "=10s: Not a number"),
        ({"broker.session.timeout.ms": "-1"}, "Value must be at least 1"),
        ({"replica.fetch.wait.max.ms": "-1"}, "Value must be at least 0"),
        ({"controller.quorum.dead.process.stagger.ms": "1"}, "Value must be at least 2"),
        (
            {"broker.heartbeat.interval.ms": "9000"},
            "broker.heartbeat.interval.ms=9000 must be less than broker.session.timeout.ms=9000",
        ),
        ({"log.dirs": "/a,,/b"}, "a name between two commas is empty"),
        ({"log.dirs": "/a,/b,/a"}, "a directory is listed twice"),
        ({"log.dirs": "/a,/b", "metadata.log.dir": "/c"}, "it must be one of log.dirs"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "PLAINTEXT is there twice"),
        ({"listeners": "PLAINTEXT://a:\u00b2"}, "write it as host:port"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "set advertised.listeners"),
        (
            {"control.listener": "0.0.0.0:19092", "node.id": "3", "process.roles": "broker"},
            "control.listener=0.0.0.0:19092: other nodes cannot connect to that",
        ),
        ({"cluster.id": "a b"}, "cluster.id='a b'"),
        ({"cluster.id": "a\nb"}, "cluster.id='a\\nb'"),
        ({"cluster.id": "a\\b"}, "without blanks or backslashes"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(changes: dict[str, str], message: str) -> None:
    if message.startswith(":"):
        [(name, value)] = changes.items()
        message = f"{name}={value}{message}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        config.build({**COMPLETE, **changes})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"node.id=1\nnonsense\n", "line 2: not name=value"),
        (b"node.id=1\nlog.dirs=/a\nnode.id = 2\n", r"line 3: node\.id is set twice"),
        (b"node.id=\xff\n", "not UTF-8 text"),
        (b"log.dirs=/a\0b\n", "a zero byte"),
        (None, "No such file"),
    ],
)
def test_a_properties_file_is_read_with_its_comments_or_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "node.properties"
    path.write_text("# a comment\n\nnode.id = 1\nlog.dirs=/a=b\n")
    assert config.read_properties(path) == {"node.id": "1", "log.dirs": "/a=b"}
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        config.read_properties(path)


def test_a_line_continues_behind_a_backslash_and_no_error_shows_a_part_of_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "node.properties"
    path.write_text(
        'a=b\\\n\nsasl.jaas.config=M required \\\n  u="s3cret" \\\n  # x;\nc=d\\\\\ne=\\'
    )
    assert config.read_properties(path) == {
        "a": "b",
        "sasl.jaas.config": 'M required u="s3cret" # x;',
        "c": "d\\\\",
        "e": "",
    }
    path.write_text("a=b\n\n  s3cret;\n")
    with pytest.raises(ConfigError, match="line 3: not name=value") as refused:
        config.read_properties(path)
    assert "s3cret" not in str(refused.value)


def test_a_voter_that_listens_everywhere_is_found_where_the_voters_say() -> None:
    values = {**COMPLETE, "control.listener": "0.0.0.0:19092"}
    assert config.build(values).control_address == "127.0.0.1:19092"
    assert config.build({**values, "control.listener": "h:1"}).control_address == "h:1"


def test_what_may_be_nothing_may_be_zero() -> None:
    built = config.build({**COMPLETE, "replica.fetch.wait.max.ms": "0", "max.connections": "0"})
    assert (built.broker.replica_fetch_wait_max_ms, built.broker.max_connections) == (0, 0)


def test_the_environment_is_a_source() -> None:
    environ = {"QUORUMLOG_CONFIG_NUM_PARTITIONS": "7", "QUORUMLOG_HOME": "x"}
    assert config.from_environment(environ) == {"num.partitions": "7"}


def test_every_fast_default_is_a_setting_that_exists() -> None:
    from quorumlog.cluster import FAST_DEFAULTS

    config.check_names(FAST_DEFAULTS)
    config.build({**COMPLETE, **FAST_DEFAULTS})


# --- a configuration that was written for Apache Kafka ---


COMPOSE = """
    auto.create.topics.enable=true controller.listener.names=CONTROLLER
    group.initial.rebalance.delay.ms=0 inter.broker.listener.name=PLAINTEXT
    listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
    log.retention.hours=168 log.roll.hours=24 num.io.threads=8 num.network.threads=3
    num.partitions=3 offsets.topic.replication.factor=1
    share.coordinator.state.topic.replication.factor=1 socket.send.buffer.bytes=102400
    transaction.state.log.min.isr=1 transaction.state.log.replication.factor=1
"""  # what the environment of a container usually sets, without the identity of the node


def test_a_containers_environment_starts_a_node() -> None:
    compose = dict(setting.split("=") for setting in COMPOSE.split())
    built = config.build({**COMPLETE, **compose})
    assert built.broker.num_partitions == 3
    assert built.log.segment_ms == 24 * 3_600_000
    assert built.broker.log_retention_ms == 168 * 3_600_000
    ignored = config.without_effect({**COMPLETE, **compose})
    assert "controller.listener.names" in ignored
    assert not {"listener.security.protocol.map", "inter.broker.listener.name"} & {*ignored}
    assert not {*ignored} & {*COMPLETE, "num.partitions", "log.roll.hours", "log.retention.hours"}


def test_milliseconds_win_over_hours() -> None:
    built = config.build({**COMPLETE, "log.roll.hours": "24", "log.roll.ms": "5000"})
    assert built.log.segment_ms == 5000


@pytest.mark.parametrize(
    ("name", "value"),
    [("ssl.cipher.suites", "TLS_AES_128_GCM_SHA256"), ("sasl.kerberos.service.name", "kafka")],
)
def test_what_would_protect_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config.build({**COMPLETE, name: value})
    assert str(refused.value).startswith(f"{name}: not supported")


def test_tiered_storage_is_refused() -> None:
    name = "remote.log.storage.system.enable"
    with pytest.raises(ConfigError, match=f"{name}=true: Tiered storage is not supported"):
        config.build({**COMPLETE, name: "true"})
    assert config.build({**COMPLETE, name: "False"}).static.texts[name] == "false"


def test_a_value_that_can_be_altered_is_kept_for_its_description() -> None:
    built = config.build({**COMPLETE, "num.io.threads": "16"})
    assert built.static.texts["num.io.threads"] == "16"


def test_every_name_is_in_one_table_only() -> None:
    assert {*ALTERED_WITHOUT_EFFECT} <= {*WITHOUT_EFFECT}
    assert sum(len(names.split()) for names in GROUPS.values()) == len(WITHOUT_EFFECT)
    assert sorted(WITHOUT_EFFECT.keys() & {*config.known_names()}) == []

    assert not any(
        is_protection(name) for name in {*WITHOUT_EFFECT, *config.known_names()} - {*ROWS}
    )


# --- the shared secret is read from a file, and not shown ---


def test_without_a_file_there_is_no_secret() -> None:
    assert read_secret(None) is None


def test_a_secret_is_what_the_file_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        assert read_secret(path) == "0123456789abcdef"
        assert not caplog.records
        path.chmod(0o644)
        read_secret(path)
    assert "other users can read the secret" in caplog.text
    assert "0123456789abcdef" not in caplog.text


@pytest.mark.parametrize(
    "content", [b"", b"short", b"0123456789 abcdef", b"\xff" * 20, b"a" * 1025]
)
def test_what_is_no_secret_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(StartFailed, match="must hold 16 to 1024 printable") as refused:
        read_secret(path)
    assert not content or content.decode(errors="replace") not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"control.shared.secret.file=.*/secret: No such file"):
        read_secret(tmp_path / "secret")


# --- an authorizer that could let nobody in is worth a warning ---


@pytest.mark.parametrize(
    ("changes", "warnings"),
    [
        ({"authorizer.class.name": ""}, []),
        ({}, ["no user can create the first ACL", "no follower can fetch"]),
        ({"super.users": "User:admin"}, ["no follower can fetch"]),
        ({"super.users": "User:admin; User:ANONYMOUS"}, []),
        ({"allow.everyone.if.no.acl.found": "true"}, []),
        ({"super.users": "User:a", "controller.quorum.voters": "1@127.0.0.1:19092"}, []),
    ],
)
def test_missing_rights_are_logged_at_the_start(
    changes: dict[str, str], warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    built = config.build({**COMPLETE, "authorizer.class.name": STANDARD_AUTHORIZER, **changes})
    warn_of_missing_rights(built)
    assert len(caplog.messages) == len(warnings)
    for line, part in zip(caplog.messages, warnings, strict=True):
        assert part in line


@pytest.mark.parametrize(
    ("name", "value"), [("authorizer.class.name", "com.example.Own"), ("super.users", "admin")]
)
def test_another_authorizer_and_a_name_without_type_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}={value}: "):
        config.build({**COMPLETE, name: value})
