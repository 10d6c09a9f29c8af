"""AlterConfigs and IncrementalAlterConfigs: what the controller writes, and what it refuses."""

from typing import cast

import pytest

from quorumlog.metadata_quorum.config_changes import (
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    ConfigResult,
)
from quorumlog.metadata_quorum.controller.broker_configs import (
    UNKNOWN_NAME_LENGTH_MAX,
    UNKNOWN_NAMES_MAX,
    UNKNOWN_VALUE_LENGTH_MAX,
)
from quorumlog.metadata_quorum.controller.configs import config_error
from quorumlog.metadata_quorum.controller.requests import (
    AlterConfigs,
    AlterPartitions,
    ConfigResults,
)
from quorumlog.metadata_quorum.controller_client import IsrProposal
from quorumlog.metadata_quorum.image.records import Config, PartitionChange
from quorumlog.settings.topics import TOPIC_SETTINGS, TopicConfig
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, PartitionIndex
from tests.support.metadata_quorum.controllers import Bench, ids, image_of, topic

MIN_ISR = "min.insync.replicas"
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT


@pytest.fixture
def bench() -> Bench:
    return Bench().start(1, 2, 3)


def setting(name: str, value: str) -> ConfigChange:
    return ConfigChange(name=name, value=value)


def deletion(name: str) -> ConfigChange:
    return ConfigChange(name=name, operation=ConfigOperation.DELETE)


def test_settings_are_set_and_deleted_beside_those_that_stay(bench: Bench) -> None:
    bench.create(topic(retention_ms="5", flush_ms="7"))
    result = bench.alter("t", deletion("retention.ms"), setting("segment.bytes", " 2000000"))
    expected = {"flush.ms": "7", "segment.bytes": "2000000"}
    assert (result.error_code, result.configs) == (ErrorCode.NONE, expected)
    assert bench.controller.cluster.configs("t") == expected


def test_what_replaces_all_leaves_nothing_of_the_old(bench: Bench) -> None:
    bench.create(topic(retention_ms="5", flush_ms="7"))
    result = bench.alter("t", setting("flush.ms", "8"), replaces_all=True)
    assert result.configs == {"flush.ms": "8"} == bench.controller.cluster.configs("t")


@pytest.mark.parametrize(
    ("before", "operation", "items", "after"),
    [
        (None, APPEND, "compact", "delete,compact"),  # the default is delete
        ("compact", APPEND, "compact,delete", "compact,delete"),
        ("delete,compact", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "delete", "compact"),
        ("delete", SUBTRACT, "delete", ""),  # then a log keeps everything
    ],
)
def test_lists_are_appended_to_and_subtracted_from(
    bench: Bench, before: str | None, operation: ConfigOperation, items: str, after: str
) -> None:
    bench.create(topic() if before is None else topic(cleanup_policy=before))
    change = ConfigChange(name="cleanup.policy", value=items, operation=operation)
    assert bench.alter("t", change).error_code is ErrorCode.NONE
    assert bench.controller.cluster.configs("t") == {"cleanup.policy": after}


def test_a_list_that_is_emptied_is_unset_if_it_is_empty_by_default(bench: Bench) -> None:
    name = TopicConfig.follower_replication_throttled_replicas.name
    bench.create(topic())
    for operation, items, after in (
        (APPEND, "0:1,0:2", {name: "0:1,0:2"}),
        (SUBTRACT, "0:1", {name: "0:2"}),
        (SUBTRACT, "0:2", {}),
        (SUBTRACT, "0:2", {}),
    ):
        change = ConfigChange(name=name, value=items, operation=operation)
        assert bench.alter("t", change).error_code is ErrorCode.NONE
        assert bench.controller.cluster.configs("t") == after


@pytest.mark.parametrize(
    ("changes", "error_code", "message"),
    [
        ((setting("retenton.ms", "1"),), "INVALID_CONFIG", "did you mean retention.ms"),
        ((setting("retention.ms", "x"),), "INVALID_CONFIG", "Not a number"),
        ((ConfigChange(name="flush.ms"),), "INVALID_REQUEST", "Null value not supported"),
        (
            (setting("flush.ms", "1"), deletion("flush.ms")),
            "INVALID_REQUEST",
            "duplicate config keys",
        ),
        (
            (ConfigChange(name="flush.ms", value="1", operation=APPEND),),
            "INVALID_CONFIG",
            "Can't APPEND to key flush.ms because its type is not LIST",
        ),
        (
            (ConfigChange(name="unheard.of", value="1", operation=SUBTRACT),),
            "INVALID_CONFIG",
            "Can't SUBTRACT",
        ),
        (
            (ConfigChange(name="cleanup.policy", value="shred", operation=APPEND),),
            "INVALID_CONFIG",
            "compact, delete",
        ),
    ],
)
def test_a_bad_change_is_refused_with_all_that_goes_with_it(
    bench: Bench, changes: tuple[ConfigChange, ...], error_code: str, message: str
) -> None:
    bench.create(topic(retention_ms="5"))
    written = len(bench.log)
    result = bench.alter("t", setting("segment.ms", "9"), *changes)
    assert result.error_code is ErrorCode[error_code]
    assert message in (result.error_message or "")
    assert len(bench.log) == written


def test_topics_have_their_own_outcomes(bench: Bench) -> None:
    for name in ("t", "u"):
        bench.create(topic(name))
    asked = [
        ConfigChanges(name=name, changes=(setting("flush.ms", "1"),))
        for name in ("t", "u", "none", "u")
    ]
    response = bench.ask(AlterConfigs(topics=tuple(asked)))
    assert [(result.name, result.error_code.name) for result in response.results] == [
        ("t", "NONE"),
        ("u", "INVALID_REQUEST"),
        ("none", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("u", "INVALID_REQUEST"),
    ]
    assert bench.controller.cluster.configs("u") == {}


def test_what_is_only_validated_or_is_so_already_writes_nothing(bench: Bench) -> None:
    bench.create(topic(retention_ms="5"))
    written = len(bench.log)
    validated = bench.alter("t", setting("retention.ms", "6"), validate_only=True)
    assert validated.configs == {"retention.ms": "6"}
    same = bench.alter("t", setting("retention.ms", "5"), deletion("segment.ms"))
    assert same.error_code is ErrorCode.NONE
    assert len(bench.log) == written


def test_a_request_that_names_too_much_is_refused_whole(bench: Bench) -> None:
    many = tuple(setting(f"x{i}", "1") for i in range(10_000))
    result = bench.alter("t", *many)
    assert result.error_code is ErrorCode.POLICY_VIOLATION


def test_a_hint_is_looked_for_among_few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search costs as much as all else together, and a request may have many wrong names."""
    searched: list[int] = []

    def search(name: str, known: list[str], n: int) -> list[str]:
        searched.append(len(known))
        return known[:n]

    monkeypatch.setattr("difflib.get_close_matches", search)
    for name in ("retenton.ms", "x" * 40, "", "m" * 100_000):
        assert config_error(name, "1") is not None
    assert max(searched) <= 3 < len(TOPIC_SETTINGS)


# --- min.insync.replicas: by it the controller judges which replicas lack nothing ---


def test_a_change_of_min_isr_voids_what_was_computed_with_the_old_one(bench: Bench) -> None:
    bench.create(topic(min_insync_replicas="3"))
    bench.die(3)
    assert bench.partition().elr == (3,)
    written = len(bench.log)
    bench.alter("t", setting(MIN_ISR, "1"))
    assert bench.partition().elr == ()
    kinds = [type(record) for record in bench.log[written:]]
    assert kinds == [PartitionChange, Config, PartitionChange]  # cleared before it may commit


def test_a_change_of_min_isr_leaves_those_alone_who_wait_for_one_of_them(bench: Bench) -> None:
    bench.create(topic(min_insync_replicas="3"))
    for broker_id in (1, 2, 3):
        bench.die(broker_id)
    before = bench.partition()
    bench.alter("t", setting(MIN_ISR, "1"))
    assert bench.partition() == before
    assert (before.isr, before.elr) == ((), (1, 2, 3))


def test_an_isr_that_was_proposed_before_min_isr_rose_is_not_granted_after_it(bench: Bench) -> None:
    """Its leader goes by the old number until it has replayed the new one.

    It would commit alone what the controller takes for not committed, and keeps the others
    eligible: they would lead without those records.
    """
    bench.create(topic(min_insync_replicas="1"))
    before = bench.partition()
    bench.alter("t", setting(MIN_ISR, "2"))
    leader = bench.controller.cluster.brokers[before.leader_id]
    topic_id = bench.topic_id("t")

    def propose_alone(partition_epoch: int) -> ErrorCode:
        proposal = IsrProposal(
            topic_id=topic_id,
            partition=PartitionIndex(0),
            leader_epoch=before.leader_epoch,
            partition_epoch=Epoch(partition_epoch),
            new_isr=((leader.broker_id, leader.broker_epoch),),
        )
        request = AlterPartitions(
            broker_id=leader.broker_id, broker_epoch=leader.broker_epoch, proposals=(proposal,)
        )
        response = bench.ask(request)
        return response.results[0].error_code

    assert propose_alone(before.partition_epoch) is ErrorCode.INVALID_UPDATE_VERSION
    assert bench.partition().isr == ids(1, 2, 3)
    assert propose_alone(bench.partition().partition_epoch) is ErrorCode.NONE
    assert (bench.partition().isr, bench.partition().elr) == ((1,), (2, 3))


# --- brokers ---


def alter_brokers(bench: Bench, *asked: tuple[str, ConfigChange]) -> list[ConfigResult]:
    wanted = tuple(
        ConfigChanges(name=name, changes=(change,), is_broker=True) for name, change in asked
    )
    return [*bench.ask(AlterConfigs(topics=wanted)).results]


def test_a_broker_and_a_topic_of_one_name_are_two_resources(bench: Bench) -> None:
    bench.create(topic("1"))
    response = bench.ask(
        AlterConfigs(
            topics=(
                ConfigChanges(
                    name="1", changes=(setting("log.retention.ms", "05"),), is_broker=True
                ),
                ConfigChanges(name="1", changes=(setting("retention.ms", "6"),)),
                ConfigChanges(name="", changes=(setting("log.retention.ms", "7"),), is_broker=True),
            )
        )
    )
    results = cast("ConfigResults", response).results
    assert [one.configs for one in results] == [
        {"log.retention.ms": "5"},
        {"retention.ms": "6"},
        {"log.retention.ms": "7", "min.insync.replicas": "1"},
    ]
    image = image_of(bench.replay())
    assert image.broker_configs == {
        "1": {"log.retention.ms": "5"},
        "": {"log.retention.ms": "7", "min.insync.replicas": "1"},
    }
    assert image.topics["1"].configs == {"retention.ms": "6"}
    back = ConfigChange(name="log.retention.ms", operation=ConfigOperation.DELETE)
    alter_brokers(bench, ("1", back))
    assert {*image_of(bench.replay()).broker_configs} == {""}


def test_settings_that_hold_from_the_start_are_refused(bench: Bench) -> None:
    refused = alter_brokers(
        bench,
        ("1", setting("listeners", "x")),
        ("2", setting("log.retention.ms", "x")),
        ("3", setting("unclean.leader.election.enable", "true")),
        ("4", ConfigChange(name="log.cleanup.policy", value="compact", operation=APPEND)),
    )
    assert [one.error_code.name for one in refused] == [
        "INVALID_REQUEST",
        "INVALID_REQUEST",
        "INVALID_REQUEST",
        "NONE",
    ]
    assert refused[0].error_message == "Cannot update these configs dynamically: Set(listeners)"
    assert refused[3].configs == {"log.cleanup.policy": "delete,compact"}


def test_unknown_names_of_brokers_are_kept_as_they_are(bench: Bench) -> None:
    """Kafka keeps them for plug-ins; ten times as many as a broker has are kept at once."""
    names = [f"plug.in.{i}" for i in range(UNKNOWN_NAMES_MAX)]
    changes = tuple(setting(name, " X ") for name in names)
    whole = ConfigChanges(name="1", changes=changes, is_broker=True)
    [result] = bench.ask(AlterConfigs(topics=(whole,))).results
    assert (result.error_code, result.configs) == (ErrorCode.NONE, dict.fromkeys(names, " X "))
    assert image_of(bench.replay()).broker_configs["1"] == dict.fromkeys(names, " X ")
    delete = ConfigChange(name=names[0], operation=ConfigOperation.DELETE)
    codes = [
        alter_brokers(bench, ("1", change))[0].error_code.name
        for change in (setting("a", "1"), delete, setting("a", "1"), setting("log.roll.ms", "5"))
    ]
    assert codes == ["POLICY_VIOLATION", "NONE", "NONE", "NONE"]


@pytest.mark.parametrize(
    "change",
    [
        setting("", "1"),
        setting("n" * (UNKNOWN_NAME_LENGTH_MAX + 1), "1"),
        setting("n", "v" * (UNKNOWN_VALUE_LENGTH_MAX + 1)),
    ],
    ids=["no name", "a long name", "a long value"],
)
def test_an_unknown_name_of_a_broker_has_a_limited_length(
    bench: Bench, change: ConfigChange
) -> None:
    before = image_of(bench.replay()).broker_configs
    [result] = alter_brokers(bench, ("", change))
    assert result.error_code is ErrorCode.INVALID_REQUEST
    assert "at most 4096" in (result.error_message or "")
    assert image_of(bench.replay()).broker_configs == before


def test_unclean_elections_may_be_allowed_for_all_topics_at_once(bench: Bench) -> None:
    for name, allowed in (("t", None), ("strict", "false")):
        bench.create(
            topic(name, 1, 2, **({"unclean_leader_election_enable": allowed} if allowed else {}))
        )
    bench.die(2)
    bench.revive(2)
    bench.die(1)
    alter_brokers(bench, ("", setting("unclean.leader.election.enable", "true")))
    assert (bench.partition().leader_id, bench.partition("strict").leader_id) == (2, -1)
    bench.die(2)
    bench.revive(1)
    assert bench.partition().leader_id == 1  # it is in force from now on


@pytest.fixture
def leaderless(bench: Bench) -> Bench:
    """Broker 1, alone in sync, is dead; broker 2 lives, and lacks records."""
    bench.create(topic("t", 1, 2, unclean_leader_election_enable="false"))
    bench.die(2)
    bench.revive(2)
    bench.die(1)
    return bench


def allowed_for_all(value: str = "true") -> ConfigChanges:
    change = setting("unclean.leader.election.enable", value)
    return ConfigChanges(name="", is_broker=True, changes=(change,))


def test_a_topic_that_says_no_in_the_request_that_allows_all_elects_nothing() -> None:
    bench = Bench().start(1, 2)
    bench.create(topic("t", 1, 2))
    bench.die(2)
    bench.revive(2)
    bench.die(1)
    no = ConfigChanges(name="t", changes=(setting("unclean.leader.election.enable", "false"),))
    bench.ask(AlterConfigs(topics=(no, allowed_for_all())))
    assert bench.partition().leader_id == -1
    assert bench.partition().elr == (1,)


def test_a_topic_that_says_no_no_longer_goes_by_what_holds_for_all(leaderless: Bench) -> None:
    leaderless.ask(AlterConfigs(topics=(allowed_for_all(),)))
    assert leaderless.partition().leader_id == -1
    name = "unclean.leader.election.enable"
    leaderless.alter("t", ConfigChange(name=name, operation=ConfigOperation.DELETE))
    assert leaderless.partition().leader_id == 2
