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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replica.lag.time.max": "1"}, "did you mean replica.lag.time.max.ms?"),
        ({"log.segment.ms": "1"}, "unknown setting log.segment.ms"),
        ({"log.segment.index.bytes": "12"}, "unknown setting log.segment.index.bytes"),
        ({"log.roll.ms": "0"}, "log.roll.ms must be positive: 0"),
        ({"num.partition": "3"}, "did you mean num.partitions?"),
        ({"num.partitions": "many"}, "num.partitions=many: a whole number is needed"),
        ({"auto.create.topics.enable": "yes"}, "true or false is needed"),
        ({"node.id": ""}, "node.id is not set"),
        ({"node.id": "3"}, "node.id=3 is not in controller.quorum.voters"),
        ({"process.roles": "boss"}, "use broker, controller or both"),
        ({"process.roles": "broker"}, "node.id=1 is in controller.quorum.voters"),
        ({"listeners": "SSL://h:1"}, "only PLAINTEXT"),
        ({"listeners": "127.0.0.1"}, "write it as host:port"),
        ({"control.listener": "127.0.0.1:99999"}, "write it as host:port"),
        ({"controller.quorum.voters": "127.0.0.1:1"}, "write it as id@host:port"),
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
    with pytest.raises(ConfigError, match="No such file"):
        config.read_properties(tmp_path / "absent")


def test_the_environment_is_a_source() -> None:
    environ = {"QUORUMLOG_CONFIG_NUM_PARTITIONS": "7", "QUORUMLOG_HOME": "x"}
    assert config.from_environment(environ) == {"num.partitions": "7"}


def test_every_fast_default_is_a_setting_that_exists() -> None:
    from quorumlog.cluster import FAST_DEFAULTS

    config.check_names(FAST_DEFAULTS)
    config.build({**COMPLETE, **FAST_DEFAULTS})
