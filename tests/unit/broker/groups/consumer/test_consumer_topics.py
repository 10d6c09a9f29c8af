"""Topics of a consumer group that come, grow and go, named or matched by an expression."""

import pytest

from quorumlog.broker.groups.core.consumer import events
from quorumlog.broker.groups.core.consumer import topics as topics_module
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    PartitionMetadataValue,
    RecordKey,
    RecordKind,
    RegularExpressionValue,
    encode,
)
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat, TopicRights
from quorumlog.broker.groups.core.consumer.topics import (
    AT_ONCE_MAX,
    EXPRESSIONS_MAX,
    InvalidRegularExpression,
    TopicDescription,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.coordination.groups_begun import consumers
from tests.support.groups.consumer.coordination import (
    ConsumerCoordination,
    PythonMatcher,
    TopicsOfTest,
    heartbeat,
    join,
)


def test_a_topic_that_grows_is_assigned_whole_and_given_up_when_it_is_deleted() -> None:
    groups = consumers("a")
    groups.set_topic("t", 5)
    told = groups.beat(heartbeat("a", 1))
    assert (told.member_epoch, told.assignment) == (2, groups.topics.some("t", 0, 1, 2, 3, 4))
    groups.set_topic("t", 0)
    told = groups.beat(heartbeat("a", 2))
    assert (told.member_epoch, told.assignment) == (2, frozenset())
    assert groups.beat(heartbeat("a", 2, owned=frozenset())).member_epoch == 3
    groups.check_replayed()


def test_a_topic_that_is_created_anew_is_another_one() -> None:
    groups = consumers("a")
    old = groups.topics.some("t", 0, 1)
    groups.set_topic("t", 0)
    groups.set_topic("t", 2)
    told = groups.beat(heartbeat("a", 1, owned=frozenset()))
    assert told.assignment == groups.topics.some("t", 0, 1)
    assert told.assignment != old


def test_topics_of_others_begin_no_epoch() -> None:
    groups = consumers("a")
    groups.set_topic("u", 3)
    groups.ask(heartbeat("a", 1))
    assert not groups.writes


def test_an_expression_subscribes_to_the_topics_that_match_whole() -> None:
    groups = ConsumerCoordination()
    groups.set_topic("tt", 1)
    groups.set_topic("ut", 1)
    told = groups.beat(join("a", subscribed_topic_names=None, subscribed_topic_regex="t+"))
    some = groups.topics.some
    assert told.assignment == some("t", 0, 1, 2, 3) | some("tt", 0)
    groups.check_replayed()
    groups.set_topic("ttt", 1)
    groups.set_topic("tt", 0)
    told = groups.beat(heartbeat("a", 1, owned=some("t", 0, 1, 2, 3)))
    assert told.assignment == some("t", 0, 1, 2, 3) | some("ttt", 0)
    stored = groups.consumer.committed.of("g")[RecordKey(RecordKind.REGULAR_EXPRESSION, "g", "t+")]
    assert isinstance(stored, RegularExpressionValue)
    assert (stored.topics, stored.version) == (["t", "ttt"], groups.topics.version)
    groups.check_replayed()


def test_an_expression_keeps_to_the_rights_of_a_member_also_after_a_failover() -> None:
    topics = TopicsOfTest(has_authorizer=True)
    for name in ("t", "tt", "ttt"):
        topics.set(name, 1)

    def may_describe(name: str) -> bool:
        return name in permitted

    def first(member_id: str) -> ConsumerHeartbeat:
        return join(
            member_id, subscribed_topic_names=None, subscribed_topic_regex="t+", rights=rights
        )

    def again(rights: TopicRights) -> None:
        epoch = groups.group.members["a"].current.member_epoch
        groups.beat(heartbeat("a", epoch, rights=rights))

    permitted, rights = {"t"}, TopicRights(may_describe, object())
    groups = ConsumerCoordination(topics)
    assert groups.beat(first("a")).assignment == topics.some("t", 0)
    groups.beat(first("b"))
    groups = groups.reloaded()
    groups.set_topic("tttt", 1)
    groups.beat(heartbeat("b", -1))  # no member's rights are there yet
    assert groups.group.expressions["t+"] == {"t"}
    permitted = {"t", "tt"}
    assert groups.group.is_metadata_due
    again(rights)
    assert groups.group.expressions["t+"] == {"t", "tt"}
    permitted = {"tt"}
    epoch = groups.group.group_epoch
    again(rights)
    assert groups.group.group_epoch == epoch, "matched again only if the ACLs have changed"
    again(TopicRights(may_describe, object()))
    assert groups.group.expressions["t+"] == {"tt"}
    groups.beat(heartbeat("a", -1))
    assert groups.group.rights == {}


def test_names_and_expression_are_added_up() -> None:
    groups = ConsumerCoordination()
    groups.set_topic("u", 1)
    told = groups.beat(join("a", "t", subscribed_topic_regex="u"))
    assert told.assignment == groups.topics.some("t", 0, 1, 2, 3) | groups.topics.some("u", 0)
    changed = groups.beat(heartbeat("a", 1, subscribed_topic_regex="", owned=frozenset()))
    assert changed.assignment == groups.topics.some("t", 0, 1, 2, 3)
    assert groups.group.expressions == {}
    groups.check_replayed()


def test_an_expression_is_forgotten_with_its_last_subscriber() -> None:
    groups = ConsumerCoordination()
    groups.beat(join("a", subscribed_topic_regex="x"))
    groups.beat(join("b", subscribed_topic_regex="x"))
    groups.beat(heartbeat("a", -1))
    assert [*groups.group.expressions] == ["x"]
    groups.beat(heartbeat("b", -1))
    assert groups.group.expressions == {}
    groups.check_replayed()


def test_an_expression_that_another_broker_took_keeps_what_it_matched() -> None:
    topics = TopicsOfTest()
    topics.set("t", 1)
    groups = ConsumerCoordination(topics)
    groups.beat(join("a", subscribed_topic_names=(), subscribed_topic_regex="t"))
    stored = ConsumerGroupRecord(
        subject=RecordKey(RecordKind.REGULAR_EXPRESSION, "g", "("),
        value=RegularExpressionValue(topics=["t"]),
    )
    metadata = groups.group.members["a"].metadata
    metadata.subscribed_topic_regex = "("
    member = ConsumerGroupRecord(subject=RecordKey(RecordKind.MEMBER, "g", "a"), value=metadata)
    for record in (stored, member):
        groups.batches.append(encode_batch([Record(0, 0, *encode(record), ())]))
    groups = groups.reloaded()
    assert groups.beat(heartbeat("a", 1)).member_epoch == 1
    assert groups.group.members["a"].current.assigned == topics.some("t", 0)


def test_the_metadata_of_topics_that_kafka_4_0_wrote_is_deleted() -> None:
    groups = consumers("a")
    record = ConsumerGroupRecord(
        subject=RecordKey(RecordKind.PARTITION_METADATA, "g"), value=PartitionMetadataValue()
    )
    groups.batches.append(encode_batch([Record(0, 0, *encode(record), ())]))
    groups = groups.reloaded()
    assert groups.group.has_partition_metadata
    groups.beat(heartbeat("a", 1))
    assert record.subject not in groups.consumer.committed.of("g")
    groups.check_replayed()


def test_an_expression_is_tried_on_every_topic_once() -> None:
    matcher = PythonMatcher()
    topics = TopicsOfTest(matcher)
    for number in range(50):
        topics.set(f"t{number}", 1)
    assert topics.matching("t1.*") is None
    topics.run_jobs()
    assert len(topics.matching("t1.*") or ()) == 11
    assert matcher.tried == 50
    topics.set("t100", 1)
    topics.set("t100", 2)
    topics.set("t10", 0)
    assert len(topics.matching("t1.*") or ()) == 11
    assert matcher.tried == 51


def test_only_so_many_expressions_are_kept() -> None:
    topics = TopicsOfTest()
    topics.set("t", 1)
    for number in range(3 * EXPRESSIONS_MAX):
        topics.matching(f"x{number}")
        topics.matching("t")  # it is asked for all the time
    assert len(topics._expressions) == EXPRESSIONS_MAX
    assert topics.is_known("t")
    with pytest.raises(InvalidRegularExpression):
        topics.matching("(")


def test_the_hash_tells_topics_apart() -> None:
    topics = TopicsOfTest()
    assert topics.metadata_hash(["a"]) == 0
    seen = {0}
    one, two = TopicId(bytes(16)), TopicId(bytes(15) + b"\1")
    for name, description in (
        ("a", TopicDescription(one, 1)),
        ("a", TopicDescription(one, 2)),
        ("a", TopicDescription(two, 2)),
        ("b", TopicDescription(one, 1)),
    ):
        topics.change(1, {name: description})
        found = topics.metadata_hash(["a", "b", "c"])
        assert -(1 << 63) <= found < 1 << 63
        assert found not in seen
        seen.add(found)
    assert topics.metadata_hash(["b", "a"]) == topics.metadata_hash(["a", "b"])


# --- Names that are tried outside of the step ---


def many_topics(count: int = AT_ONCE_MAX + 1) -> ConsumerCoordination:
    topics = TopicsOfTest()
    for number in range(count):
        topics.set(f"t{number}", 1)
    return ConsumerCoordination(topics)


def test_a_member_waits_while_names_are_tried_with_its_expression() -> None:
    groups = many_topics()
    asked = [groups.ask(join(member, subscribed_topic_regex="t1.*")) for member in "ab"]
    assert groups.writes == []
    assert len(groups.own) == 1
    groups.try_names()
    groups.commit_writes()
    assert [groups.replies[one].member_epoch for one in asked] == [1, 2]
    assert groups.group.expressions == {"t1.*": groups.topics.matching("t1.*")}
    groups.check_replayed()


def test_names_are_tried_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "AT_A_TIME_MAX", 10)
    groups = many_topics()
    asked = groups.ask(join("a", subscribed_topic_regex="t.*"))
    groups.try_names()
    assert groups.writes == []
    groups.try_names()
    groups.commit_writes()
    assert len(groups.replies[asked].assignment or ()) == AT_ONCE_MAX + 1


def test_what_is_no_expression_is_refused_at_once() -> None:
    groups = many_topics()
    refused = join("a", subscribed_topic_regex="(")
    assert groups.refused(refused) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert groups.own == []


def test_new_topics_come_to_a_group_once_they_were_tried() -> None:
    groups = many_topics()
    groups.ask(join("a", subscribed_topic_regex="t.*"))
    groups.try_names()
    groups.commit_writes()
    new = {f"t{number}": TopicDescription(TopicId(b"%16d" % number), 1) for number in range(50, 70)}
    groups.topics.change(groups.topics.version + 1, new)
    groups.step(events.TopicsChanged(names=new.keys()))
    assert groups.beat(heartbeat("a", 1)).member_epoch == 1
    groups.try_names()
    answer = groups.beat(heartbeat("a", 1))
    assert (answer.member_epoch, len(answer.assignment or ())) == (2, AT_ONCE_MAX + 1 + 20)
    groups.check_replayed()


def test_a_coordinator_that_took_over_keeps_what_its_group_has_until_names_were_tried() -> None:
    groups = many_topics()
    groups.ask(join("a", subscribed_topic_regex="t.*"))
    groups.try_names()
    groups.commit_writes()
    topics = TopicsOfTest()
    topics.change(groups.topics.version, groups.topics.by_name)
    successor = ConsumerCoordination(topics, batches=groups.batches)
    assert successor.beat(heartbeat("a", 1)).member_epoch == 1
    successor.try_names()
    assert successor.beat(heartbeat("a", 1)).member_epoch == 1
    assert successor.group.group_epoch == 1


def test_only_so_many_expressions_are_tried_at_a_time() -> None:
    groups = many_topics()
    for number in range(EXPRESSIONS_MAX):
        groups.ask(join("a", group_id=f"g{number}", subscribed_topic_regex=f"t{number}"))
    late = join("a", group_id="late", subscribed_topic_regex="late")
    assert groups.refused(late) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    groups.try_names()
    asked = groups.ask(late)
    assert asked not in groups.replies
    assert len(groups.own) == EXPRESSIONS_MAX


def test_a_group_with_an_expression_waits_for_the_names_of_another_one() -> None:
    groups = many_topics()
    groups.ask(join("a", subscribed_topic_regex="t1.*"))
    groups.try_names()
    groups.commit_writes()
    asked = groups.ask(heartbeat("a", 1, subscribed_topic_regex="t2.*"))
    assert groups.writes == []
    groups.try_names()
    groups.commit_writes()
    assert groups.replies[asked].member_epoch == 1  # the topics of the first are to be revoked
    assert groups.group.expressions == {"t2.*": groups.topics.matching("t2.*")}
