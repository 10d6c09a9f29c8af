"""AlterConfigs and IncrementalAlterConfigs: what the controller writes, and what it refuses."""

import pytest

from quorumlog.metadata_quorum.controller.configs import config_error
from quorumlog.metadata_quorum.controller.requests import (
    AlterPartitions,
    AlterTopicConfigs,
    ConfigResults,
    IsrResults,
)
from quorumlog.metadata_quorum.controller_client import (
    ConfigChange,
    ConfigOperation,
    IsrProposal,
    TopicConfigChanges,
)
from quorumlog.metadata_quorum.image.records import Config, PartitionChange
from quorumlog.settings.topics import TOPIC_SETTINGS
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, PartitionIndex
from tests.support.metadata_quorum.controllers import Bench, ids, topic

MIN_ISR = "min.insync.replicas"
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.start(1, 2, 3)
    return bench


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
        TopicConfigChanges(name=name, changes=(setting("flush.ms", "1"),))
        for name in ("t", "u", "none", "u")
    ]
    response = bench.ask(AlterTopicConfigs(topics=tuple(asked)))
    assert isinstance(response, ConfigResults)
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


def test_an_isr_that_was_proposed_before_min_isr_rose_is_not_granted_after_it(
    bench: Bench,
) -> None:
    """Its leader goes by the old number until it has replayed the new one.

    It would commit alone what the controller takes for not committed, and keeps the others
    eligible: they would lead without those records.
    """
    bench.create(topic(min_insync_replicas="1"))
    before = bench.partition()
    bench.alter("t", setting(MIN_ISR, "2"))
    leader = bench.controller.cluster.brokers[before.leader_id]
    topic_id = bench.controller.cluster.topic_id("t")
    assert topic_id is not None

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
        assert isinstance(response, IsrResults)
        return response.results[0].error_code

    assert propose_alone(before.partition_epoch) is ErrorCode.INVALID_UPDATE_VERSION
    assert bench.partition().isr == ids(1, 2, 3)
    assert propose_alone(bench.partition().partition_epoch) is ErrorCode.NONE
    assert (bench.partition().isr, bench.partition().elr) == ((1,), (2, 3))
