"""Which errors of a client are definite, and what an error says of itself."""

import pytest

from quorumlog.client.core.accumulator import Accumulator, BatchAnswer
from quorumlog.client.core.batch import Batch, ProducerIdentity, checked_record_size
from quorumlog.client.core.metadata_cache import Leader
from quorumlog.client.errors import DEFINITE, KafkaError, answered, known
from quorumlog.client.settings import ProducerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

E = ErrorCode
LOST_UNSENT, LOST_SENT, TIMED_OUT = "lost, not written", "lost, written", "delivery timeout"


class Anywhere:
    def leader(self, topic_partition: TopicPartition) -> Leader:
        return Leader(1, 1)

    def has_room(self, broker_id: int) -> bool:
        return True


def fate(*attempts: ErrorCode | str) -> KafkaError:
    """The error of one record whose attempts ended like this."""
    settings = ProducerSettings(bootstrap_servers="x:1", linger_ms=0, delivery_timeout_ms=30_000)
    accumulator = Accumulator(settings)
    accumulator.identify(ProducerIdentity(1, 0))
    now_ms = 0.0
    queue = accumulator.queue(TopicPartition("t", 0))
    size = checked_record_size(None, b"v", ())
    batch, _ = accumulator.append(now_ms, queue, (0, None, b"v", ()), size)
    for number, attempt in enumerate(attempts, start=1):
        if number == len(attempts) and attempt != TIMED_OUT:
            now_ms = 30_000
        else:
            now_ms += 5_000  # beyond any backoff
        if attempt == TIMED_OUT:
            accumulator.expire(30_000)
            break
        assert accumulator.drain(now_ms, Anywhere()).by_broker == {1: [batch]}
        end(accumulator, batch, now_ms, attempt)
    assert batch.error is not None
    return batch.error


def end(accumulator: Accumulator, batch: Batch, now_ms: float, attempt: ErrorCode | str) -> None:
    if isinstance(attempt, ErrorCode):
        accumulator.handle_answer(now_ms, batch, BatchAnswer(attempt), 0.5)
    else:
        written = attempt == LOST_SENT
        accumulator.handle_lost(
            now_ms, batch, written=written, message=attempt, random_fraction=0.5
        )


@pytest.mark.parametrize(
    ("attempts", "definite"),
    [
        ((E.MESSAGE_TOO_LARGE,), True),
        ((E.INVALID_TIMESTAMP,), True),
        ((E.NOT_ENOUGH_REPLICAS,), True),
        ((E.NOT_ENOUGH_REPLICAS, E.NOT_ENOUGH_REPLICAS), True),
        ((LOST_UNSENT,), True),
        ((LOST_UNSENT, E.MESSAGE_TOO_LARGE), True),
        ((TIMED_OUT,), True),  # it never left
        ((E.NOT_ENOUGH_REPLICAS, TIMED_OUT), True),  # it waited for its next attempt
        ((E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,), False),
        ((E.NOT_LEADER_OR_FOLLOWER,), False),  # KAFKA-13574
        ((E.REQUEST_TIMED_OUT,), False),
        ((E.UNKNOWN_SERVER_ERROR,), False),
        ((E.UNKNOWN_TOPIC_OR_PARTITION,), False),
        ((E.KAFKA_STORAGE_ERROR,), False),
        ((LOST_SENT,), False),
        ((LOST_SENT, TIMED_OUT), False),
        ((LOST_SENT, E.MESSAGE_TOO_LARGE), False),
        ((E.NOT_LEADER_OR_FOLLOWER, E.NOT_ENOUGH_REPLICAS), False),
        ((LOST_SENT, E.OUT_OF_ORDER_SEQUENCE_NUMBER), False),  # the known trap
        ((E.NOT_ENOUGH_REPLICAS, LOST_SENT, E.INVALID_PRODUCER_EPOCH), False),
    ],
)
def test_an_error_is_definite_only_if_every_attempt_was(
    attempts: tuple[ErrorCode | str, ...], definite: bool
) -> None:
    assert fate(*attempts).definite is definite


def test_a_timeout_while_an_answer_is_under_way_is_indefinite() -> None:
    settings = ProducerSettings(bootstrap_servers="x:1", linger_ms=0, delivery_timeout_ms=30_000)
    accumulator = Accumulator(settings)
    accumulator.identify(ProducerIdentity(1, 0))
    queue = accumulator.queue(TopicPartition("t", 0))
    batch, _ = accumulator.append(0, queue, (0, None, b"v", ()), 30)
    accumulator.drain(0, Anywhere())
    assert accumulator.expire(29_999) == []
    assert accumulator.expire(30_000) == [batch]
    assert batch.error is not None
    assert (batch.error.code, batch.error.definite) == (E.REQUEST_TIMED_OUT, False)
    assert not accumulator.handle_answer(30_001, batch, BatchAnswer(), 0.5)  # too late to matter
    accumulator.check_invariants()


def test_what_an_error_says_of_itself() -> None:
    fenced = KafkaError(E.PRODUCER_FENCED, "by another", definite=True)
    assert str(fenced) == "PRODUCER_FENCED: by another"
    assert (fenced.retriable, fenced.abortable, fenced.fatal) == (False, False, True)
    assert KafkaError(E.NOT_ENOUGH_REPLICAS, definite=True).retriable
    assert KafkaError(E.TRANSACTION_ABORTABLE, definite=True).abortable
    assert answered(E.TOPIC_ALREADY_EXISTS).definite
    assert not answered(E.TOPIC_ALREADY_EXISTS, earlier_definite=False).definite
    assert known(9_999) == E.UNKNOWN_SERVER_ERROR
    assert not answered(9_999).definite


def test_nothing_that_may_follow_an_append_counts_as_definite() -> None:
    after_append = {
        E.NONE,
        E.KAFKA_STORAGE_ERROR,
        E.NETWORK_EXCEPTION,
        E.NOT_CONTROLLER,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        E.NOT_LEADER_OR_FOLLOWER,
        E.REQUEST_TIMED_OUT,
        E.UNKNOWN_SERVER_ERROR,
        E.UNKNOWN_TOPIC_ID,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert not DEFINITE & after_append
