"""What is missing is said once it lasts, rarely again, and once when it is over."""

from quorumlog.client.core.absences import (
    CLUSTER,
    GAP_MS,
    NAMED_MAX,
    REPORT_AFTER_MS,
    REPORT_AGAIN_MS,
    Absences,
    Subject,
    is_missing,
    missing_partitions,
    missing_topics,
)
from quorumlog.client.core.metadata_cache import MetadataCache
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

GONE: dict[Subject, str] = {CLUSTER: "refused"}


def texts(absences: Absences, now_ms: float, causes: dict[Subject, str]) -> list[str]:
    return [notice.text for notice in absences.step(now_ms, causes)]


def test_a_failover_is_not_worth_a_word() -> None:
    absences = Absences()
    assert texts(absences, 0, GONE) == []
    assert texts(absences, REPORT_AFTER_MS - 1, GONE) == []
    assert texts(absences, REPORT_AFTER_MS, {}) == []


def test_what_lasts_is_said_once_and_rarely_again() -> None:
    absences, said = Absences(), []
    for now_ms in range(0, 2 * REPORT_AGAIN_MS, 100):
        said += [(now_ms, text) for text in texts(absences, now_ms, GONE)]
    first, second = REPORT_AFTER_MS, REPORT_AFTER_MS + REPORT_AGAIN_MS
    assert said == [
        (first, "the cluster: refused (for 3 s)"),
        (second, "the cluster: refused (for 63 s)"),
    ]
    over = absences.step(2 * REPORT_AGAIN_MS, {})
    assert [(notice.text, notice.is_over) for notice in over] == [("the cluster: found", True)]
    assert texts(absences, 2 * REPORT_AGAIN_MS + 1, {}) == []


def test_two_blips_far_apart_are_not_one_absence() -> None:
    absences = Absences()
    assert texts(absences, 0, GONE) == []
    assert texts(absences, GAP_MS + 1, GONE) == []  # without a look in between


def test_many_of_one_cause_are_one_line() -> None:
    absences = Absences()
    causes: dict[Subject, str] = {TopicPartition("t", index): "no leader" for index in range(100)}
    absences.step(0, causes)
    (line,) = texts(absences, REPORT_AFTER_MS, causes)
    more = 100 - NAMED_MAX
    assert line == f"t-0, t-1, t-2, t-3, t-4 and {more} more: no leader (for 3 s)"
    causes[TopicPartition("u", 0)] = "no leader"  # a late one is named with the others
    absences.step(REPORT_AFTER_MS + 1, causes)
    (line,) = texts(absences, 2 * REPORT_AFTER_MS + 1, causes)
    assert f"and {more + 1} more" in line


def metadata() -> MetadataCache:
    cache = MetadataCache()
    led = MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=0)
    leaderless = MetadataResponsePartition(partition_index=1, leader_id=-1, leader_epoch=3)
    topics = [
        MetadataResponseTopic(name="t", partitions=[led, leaderless]),
        MetadataResponseTopic(name="no", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        MetadataResponseTopic(name="shy", error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ]
    brokers = [MetadataResponseBroker(node_id=1, host="h", port=1)]
    cache.update(MetadataResponse(brokers=brokers, topics=topics))
    return cache


def test_what_the_metadata_lacks_is_named_with_its_cause() -> None:
    assert missing_topics(metadata(), ["t", "no", "shy", "not asked for yet"]) == {
        "topic 'no'": "does not exist",
        "topic 'shy'": "TOPIC_AUTHORIZATION_FAILED",
    }
    named = [TopicPartition("t", index) for index in range(3)]
    named += [TopicPartition(topic, 0) for topic in ("no", "shy", "not asked for yet")]
    cache = metadata()
    assert missing_partitions(cache, named) == {
        TopicPartition("t", 1): "no broker leads it",
        TopicPartition("t", 2): "t has 2 partitions, counted from 0",
        TopicPartition("no", 0): "topic 'no' does not exist",
        TopicPartition("shy", 0): "TOPIC_AUTHORIZATION_FAILED",
    }
    assert [is_missing(cache, name) for name in named] == [False, False, True, True, False, False]
