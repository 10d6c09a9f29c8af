"""Which values a topic's configuration takes, and how it keeps them: as Apache Kafka 4.3 does."""

import pytest

from quorumlog.broker.partitions.log.log_directory import log_settings
from quorumlog.metadata_quorum.config_changes import ConfigChange
from quorumlog.metadata_quorum.controller.configs import config_error, kept_value
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.settings.topics import TOPIC_SETTINGS, TopicConfig
from tests.support.metadata_quorum.controllers import Bench

TAKEN = [
    ("segment.bytes", "1048576", "1048576"),
    ("segment.bytes", " +1048576\t", "1048576"),
    ("retention.ms", "-1", "-1"),
    ("retention.ms", "\N{ARABIC-INDIC DIGIT SEVEN}", "7"),  # Java reads digits of any script
    ("retention.bytes", "007", "7"),
    ("preallocate", "TRUE", "true"),
    ("unclean.leader.election.enable", " False ", "false"),
    ("remote.storage.enable", "FALSE", "false"),
    ("cleanup.policy", "", ""),
    ("cleanup.policy", "  ", ""),
    ("cleanup.policy", " compact , delete ", "compact,delete"),
    ("compression.type", "zstd ", "zstd"),
    ("min.cleanable.dirty.ratio", " 1e-1", "1e-1"),
    ("min.cleanable.dirty.ratio", "0" * 5000, "0" * 5000),
    ("leader.replication.throttled.replicas", "0:1,1:2", "0:1,1:2"),
    ("leader.replication.throttled.replicas", " 0:1 , 1:2", "0:1,1:2"),
    ("leader.replication.throttled.replicas", "*", "*"),
    ("follower.replication.throttled.replicas", "0:" + "9" * 5000, "0:" + "9" * 5000),
]
REFUSED = [
    ("segment.bytes", "1048575", "at least 1048576"),
    ("segment.bytes", "14", "at least 1048576"),
    ("segment.bytes", "2147483648", "at most"),
    ("retention.ms", "1_0", "Not a number"),
    ("retention.ms", "1 0", "Not a number"),
    ("retention.ms", "\N{NO-BREAK SPACE}5", "Not a number"),  # Java's trim leaves it
    ("retention.ms", "5.0", "Not a number"),
    ("retention.ms", "", "Not a number"),
    ("retention.ms", "9" * 5000, "Not a number"),
    ("min.cleanable.dirty.ratio", "1_0e-1", "Not a number"),
    ("min.cleanable.dirty.ratio", "nan", "Not a number"),
    ("min.cleanable.dirty.ratio", "inf", "Not a number"),
    ("min.cleanable.dirty.ratio", "1.1", "between 0 and 1"),
    ("preallocate", "yes", "true or false"),
    ("preallocate", "", "true or false"),
    ("remote.storage.enable", "true", "Tiered storage is not supported"),
    ("remote.storage.enable", "TRUE", "Tiered storage is not supported"),
    ("remote.storage.enable", "maybe", "true or false"),
    ("cleanup.policy", "compact,", "compact, delete"),
    ("cleanup.policy", "Compact", "compact, delete"),
    ("compression.type", "ZSTD", "one of"),
    ("leader.replication.throttled.replicas", "9" * 5000, "made of partition:broker"),
    ("follower.replication.throttled.replicas", "0:1,*", "made of partition:broker"),
]


@pytest.mark.parametrize(("name", "value", "kept"), TAKEN)
def test_a_value_is_taken_and_kept_as_it_was_understood(name: str, value: str, kept: str) -> None:
    assert config_error(name, value) is None
    assert kept_value(name, value) == kept
    assert config_error(name, kept) is None
    log_settings(TopicConfig({name: kept}, {}))  # a broker can read it


@pytest.mark.parametrize(("name", "value", "problem"), REFUSED)
def test_a_value_is_refused(name: str, value: str, problem: str) -> None:
    assert problem in (config_error(name, value) or "")


@pytest.mark.parametrize("name", sorted(TOPIC_SETTINGS))
def test_no_text_does_any_harm(name: str) -> None:
    for text in ("", "0", "-0", "\0", "x" * 32_767, "1" * 5000, "\N{PILE OF POO}", "true", "²"):
        if config_error(name, text) is None:
            kept = kept_value(name, text)
            assert (config_error(name, kept), kept_value(name, kept)) == (None, kept)


def test_creation_and_alteration_keep_the_same() -> None:
    bench = Bench().start(1, 2, 3)
    given = {"preallocate": "TRUE", "segment.bytes": " 2000000"}
    bench.create(NewTopic(name="t", configs=given))
    kept = {"preallocate": "true", "segment.bytes": "2000000"}
    assert bench.controller.cluster.configs("t") == kept
    size = len(bench.log)
    bench.alter("t", *(ConfigChange(name=name, value=value) for name, value in given.items()))
    assert (bench.controller.cluster.configs("t"), len(bench.log)) == (kept, size)
