"""A node's configuration: its sources, its names, and what is refused."""

from pathlib import Path

import pytest

from quorumlog.node import config
from quorumlog.node.config import ConfigError

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
    assert str(built.advertised) == "127.0.0.1:9092"


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
        ({"log.roll.ms": "0"}, "log.roll.ms=0: Value must be at least 1"),
        ({"num.partition": "3"}, "did you mean num.partitions?"),
        ({"num.partitions": "many"}, "num.partitions=many: Not a number"),
        (
            {"auto.create.topics.enable": "yes"},
            "auto.create.topics.enable=yes: Expected value to be either true or false",
        ),
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
        ({"listeners": "SSL://h:1"}, "only PLAINTEXT"),
        ({"listeners": "127.0.0.1"}, "write it as host:port"),
        ({"control.listener": "127.0.0.1:99999"}, "write it as host:port"),
        ({"controller.quorum.voters": "127.0.0.1:1"}, "write it as id@host:port"),
        ({"controller.quorum.voters": "1@a:1,1@b:1"}, "1 is listed twice"),
        (
            {"controller.quorum.voters": "-1@a:1"},
            "controller.quorum.voters=-1: Value must be at least",
        ),
        ({"node.id": "-1"}, "node.id=-1: Value must be at least 0"),
        ({"node.id": "2147483648"}, "Value must be at most 2147483647"),
        (
            {"offsets.topic.segment.bytes": "1048575"},
            "offsets.topic.segment.bytes=1048575: Value must be at least 1048576",
        ),
        ({"num.partitions": "0"}, "num.partitions=0: Value must be at least 1"),
        ({"num.partitions": "1_000"}, "num.partitions=1_000: Not a number"),
        ({"num.partitions": "1" * 5000}, "1: Not a number"),
        ({"num.partitions": "2147483648"}, "Value must be at most 2147483647"),
        ({"min.insync.replicas": "0"}, "min.insync.replicas=0: Value must be at least 1"),
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
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "only one listener is supported"),
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
    with pytest.raises(ConfigError) as refused:
        config.build({**COMPLETE, **changes})
    assert message in str(refused.value)


def test_a_properties_file_is_read_with_its_comments(tmp_path: Path) -> None:
    path = tmp_path / "node.properties"
    path.write_text("# a comment\n\nnode.id = 1\nlog.dirs=/a=b\n")
    assert config.read_properties(path) == {"node.id": "1", "log.dirs": "/a=b"}
    path.write_text("node.id=1\nnonsense\n")
    with pytest.raises(ConfigError, match="line 2: not name=value"):
        config.read_properties(path)
    path.write_text("node.id=1\nlog.dirs=/a\nnode.id = 2\n")
    with pytest.raises(ConfigError, match=r"line 3: node\.id is set twice"):
        config.read_properties(path)
    path.write_bytes(b"node.id=\xff\n")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        config.read_properties(path)
    path.write_bytes(b"log.dirs=/a\0b\n")
    with pytest.raises(ConfigError, match="a zero byte"):
        config.read_properties(path)
    with pytest.raises(ConfigError, match="No such file"):
        config.read_properties(tmp_path / "absent")


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
