"""AlterConfigs and IncrementalAlterConfigs: the writes and the refusals of the controller."""

import pytest

from quorumlog.broker.partitions.log.log_directory import log_settings
from quorumlog.metadata_quorum.cluster_changes import ConfigChange, ConfigChanges, ConfigOperation
from quorumlog.metadata_quorum.controller.broker_configs import (
    UNKNOWN_NAME_LENGTH_MAX,
    UNKNOWN_NAMES_MAX,
    UNKNOWN_VALUE_LENGTH_MAX,
)
from quorumlog.metadata_quorum.controller.configs import config_error, kept_value
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.metadata_quorum.controller_requests import AlterConfigs
from quorumlog.metadata_quorum.image.records import Config, PartitionChange
from quorumlog.settings.topics import TOPIC_SETTINGS, TopicConfig
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.metadata_quorum.controllers import Bench, deletion, ids, image_of, setting, topic

MIN_ISR = "min.insync.replicas"


APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT
UNCLEAN = "unclean.leader.election.enable"


@pytest.fixture
def bench() -> Bench:
    return Bench().start(1, 2, 3)


def appended(name: str, value: str, operation: ConfigOperation = APPEND) -> ConfigChange:
    return ConfigChange(name=name, value=value, operation=operation)


def of_broker(name: str, *changes: ConfigChange) -> ConfigChanges:
    return ConfigChanges(name=name, changes=changes, is_broker=True)


def leaderless(bench: Bench, **configs: str) -> None:
    """Create topic t; broker 1, alone in sync, is dead; broker 2 lives, and lacks records."""
    bench.create(topic("t", 1, 2, **configs))
    bench.die(2)
    bench.revive(2)
    bench.die(1)


def test_settings_are_set_and_deleted_beside_those_that_stay(bench: Bench) -> None:
    bench.create(topic(retention_ms="5", flush_ms="7"))
    result = bench.alter("t", deletion("retention.ms"), setting("segment.bytes", " 2000000"))
    expected = {"flush.ms": "7", "segment.bytes": "2000000"}
    assert (result.error_code, result.configs) == (ErrorCode.NONE, expected)
    assert bench.controller.cluster.configs("t") == expected
    whole = bench.alter("t", setting("flush.ms", "8"), replaces_all=True)
    assert whole.configs == {"flush.ms": "8"} == bench.controller.cluster.configs("t")


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
    change = appended("cleanup.policy", items, operation)
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
        assert bench.alter("t", appended(name, items, operation)).error_code is ErrorCode.NONE
        assert bench.controller.cluster.configs("t") == after


@pytest.mark.parametrize(
    ("changes", "error_code", "message"),
    [
        ([setting("retenton.ms", "1")], "INVALID_CONFIG", "did you mean retention.ms"),
        ([setting("retention.ms", "x")], "INVALID_CONFIG", "Not a number"),
        ([setting("flush.ms", None)], "INVALID_REQUEST", "Null value not supported"),
        (
            [setting("flush.ms", "1"), deletion("flush.ms")],
            "INVALID_REQUEST",
            "duplicate config keys",
        ),
        (
            [appended("flush.ms", "1")],
            "INVALID_CONFIG",
            "Can't APPEND to key flush.ms because its type is not LIST",
        ),
        ([appended("unheard.of", "1", SUBTRACT)], "INVALID_CONFIG", "Can't SUBTRACT"),
        ([appended("cleanup.policy", "shred")], "INVALID_CONFIG", "compact, delete"),
    ],
)
def test_a_bad_change_is_refused_with_all_that_goes_with_it(
    bench: Bench, changes: list[ConfigChange], error_code: str, message: str
) -> None:
    bench.create(topic(retention_ms="5"))
    with bench.unwritten():
        result = bench.alter("t", setting("segment.ms", "9"), *changes)
    assert result.error_code is ErrorCode[error_code]
    assert message in (result.error_message or "")


def test_topics_have_their_own_outcomes(bench: Bench) -> None:
    for name in ("t", "u"):
        bench.create(topic(name))
    change = setting("flush.ms", "1")
    asked = tuple(ConfigChanges(name=name, changes=(change,)) for name in ("t", "u", "none", "u"))
    results = bench.ask(AlterConfigs(topics=asked)).results
    assert [(result.name, result.error_code.name) for result in results] == [
        ("t", "NONE"),
        ("u", "INVALID_REQUEST"),
        ("none", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("u", "INVALID_REQUEST"),
    ]
    assert bench.controller.cluster.configs("u") == {}


def test_what_is_only_validated_or_is_so_already_writes_nothing(bench: Bench) -> None:
    bench.create(topic(retention_ms="5"))
    with bench.unwritten():
        validated = bench.alter("t", setting("retention.ms", "6"), validate_only=True)
        same = bench.alter("t", setting("retention.ms", "5"), deletion("segment.ms"))
        many = bench.alter("t", *(setting(f"x{number}", "1") for number in range(10_000)))
    assert validated.configs == {"retention.ms": "6"}
    assert same.error_code is ErrorCode.NONE
    assert many.error_code is ErrorCode.POLICY_VIOLATION  # a request names 10 000 things


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
    proposal = bench.proposal(1)
    bench.alter("t", setting(MIN_ISR, "2"))
    assert bench.propose(proposal).results[0].error_code is ErrorCode.INVALID_UPDATE_VERSION
    assert bench.partition().isr == ids(1, 2, 3)
    assert bench.propose(bench.proposal(1)).results[0].error_code is ErrorCode.NONE
    assert (bench.partition().isr, bench.partition().elr) == ((1,), (2, 3))


# --- brokers ---


def test_a_broker_and_a_topic_of_one_name_are_two_resources(bench: Bench) -> None:
    bench.create(topic("1"))
    request = AlterConfigs(
        topics=(
            of_broker("1", setting("log.retention.ms", "05")),
            ConfigChanges(name="1", changes=(setting("retention.ms", "6"),)),
            of_broker("", setting("log.retention.ms", "7")),
        )
    )
    for_all = {"log.retention.ms": "7", "min.insync.replicas": "1"}
    assert [one.configs for one in bench.ask(request).results] == [
        {"log.retention.ms": "5"},
        {"retention.ms": "6"},
        for_all,
    ]
    image = image_of(bench.replay())
    assert image.broker_configs == {"1": {"log.retention.ms": "5"}, "": for_all}
    assert image.topics["1"].configs == {"retention.ms": "6"}
    bench.alter("1", deletion("log.retention.ms"), is_broker=True)
    assert {*image_of(bench.replay()).broker_configs} == {""}


def test_settings_that_hold_from_the_start_are_refused(bench: Bench) -> None:
    at_the_start, wrong, for_all_only, good = bench.ask(
        AlterConfigs(
            topics=(
                of_broker("1", setting("listeners", "x")),
                of_broker("2", setting("log.retention.ms", "x")),
                of_broker("3", setting(UNCLEAN, "true")),
                of_broker("4", appended("log.cleanup.policy", "compact")),
            )
        )
    ).results
    for refused in (at_the_start, wrong, for_all_only):
        assert refused.error_code is ErrorCode.INVALID_REQUEST
    message = "Cannot update these configs dynamically: [listeners]"
    assert (at_the_start.error_message, good.error_code) == (message, ErrorCode.NONE)
    assert good.configs == {"log.cleanup.policy": "delete,compact"}


def test_unknown_names_of_brokers_are_kept_as_they_are(bench: Bench) -> None:
    """Kafka keeps them for plug-ins; ten times as many as a broker has are kept at once."""
    names = [f"plug.in.{i}" for i in range(UNKNOWN_NAMES_MAX)]
    result = bench.alter("1", *(setting(name, " X ") for name in names), is_broker=True)
    assert (result.error_code, result.configs) == (ErrorCode.NONE, dict.fromkeys(names, " X "))
    assert image_of(bench.replay()).broker_configs["1"] == dict.fromkeys(names, " X ")
    for change, code in (
        (setting("a", "1"), "POLICY_VIOLATION"),
        (deletion(names[0]), "NONE"),
        (setting("a", "1"), "NONE"),
        (setting("log.roll.ms", "5"), "NONE"),
    ):
        assert bench.alter("1", change, is_broker=True).error_code.name == code


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
    result = bench.alter("", change, is_broker=True)
    assert result.error_code is ErrorCode.INVALID_REQUEST
    assert "at most 4096" in (result.error_message or "")
    assert image_of(bench.replay()).broker_configs == before


def test_unclean_elections_may_be_allowed_for_all_topics_at_once(bench: Bench) -> None:
    bench.create(topic("strict", 1, 2, unclean_leader_election_enable="false"))
    leaderless(bench)
    bench.alter("", setting(UNCLEAN, "true"), is_broker=True)
    assert (bench.partition().leader_id, bench.partition("strict").leader_id) == (2, -1)
    bench.die(2)
    bench.revive(1)
    assert bench.partition().leader_id == 1  # it is in force from now on
    bench.die(1)
    bench.revive(2)
    assert bench.partition("strict").leader_id == -1
    bench.alter("strict", deletion(UNCLEAN))  # it goes by what holds for all again
    assert bench.partition("strict").leader_id == 2


def test_a_topic_that_says_no_in_the_request_that_allows_all_elects_nothing(bench: Bench) -> None:
    leaderless(bench)
    no = ConfigChanges(name="t", changes=(setting(UNCLEAN, "false"),))
    bench.ask(AlterConfigs(topics=(no, of_broker("", setting(UNCLEAN, "true")))))
    assert (bench.partition().leader_id, bench.partition().elr) == (-1, (1,))


# --- the values that a topic's configuration takes and keeps, as Apache Kafka 4.3 does ---


THROTTLED = "leader.replication.throttled.replicas"
RATIO = "min.cleanable.dirty.ratio"
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
    (RATIO, " 1e-1", "1e-1"),
    (RATIO, "0" * 5000, "0" * 5000),
    (THROTTLED, "0:1,1:2", "0:1,1:2"),
    (THROTTLED, " 0:1 , 1:2", "0:1,1:2"),
    (THROTTLED, "*", "*"),
    ("follower.replication.throttled.replicas", "0:" + "9" * 5000, "0:" + "9" * 5000),
]
REFUSED = [
    ("segment.bytes", "1048575", "at least 1048576"),
    ("segment.bytes", "14", "at least 1048576"),
    ("segment.bytes", "2147483648", "no more than"),
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


def test_creation_and_alteration_keep_the_same(bench: Bench) -> None:
    given = {"preallocate": "TRUE", "segment.bytes": " 2000000"}
    kept = {"preallocate": "true", "segment.bytes": "2000000"}
    bench.create(NewTopic(name="t", configs=given))
    assert bench.controller.cluster.configs("t") == kept
    with bench.unwritten():
        bench.alter("t", *(setting(name, value) for name, value in given.items()))
    assert bench.controller.cluster.configs("t") == kept
