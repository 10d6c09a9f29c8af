"""Each rule of the oracle of transactions, broken by hand beside a history that keeps it."""

from collections.abc import Callable

import pytest

from quorumlog.broker.transactions.core.requests import NO_PRODUCER
from quorumlog.chaos.simulation.worlds.entries import COMMITS, Entry
from quorumlog.chaos.simulation.worlds.transactions.oracle import LAST_EPOCH
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from tests.support.transactions.oracle_history import (
    A0,
    A1,
    ABORT,
    B0,
    COMMIT,
    COMMITS_FIRST,
    COORDINATOR,
    FIRST,
    SECOND,
    SETTINGS,
    SUCCESSOR,
    T0,
    T1,
    TOPIC_ID,
    History,
    broken,
    record,
)

STRAY = record(b"careless")._replace(is_transactional=False)


def test_what_holds_is_accepted() -> None:
    history = History()
    oracle = history.oracle
    history.committed()
    oracle.read(T0, 0, 2, 2, {0: b"a:0"})
    oracle.read(T0, 0, 0, 2, {})  # ends before the record
    oracle.read(T0, 1, 2, 2, {})  # begins behind it
    second = history.begin(SECOND)  # fences the first
    oracle.granted(second, oracle.asks(second), SETTINGS.add(SECOND, [T0]), 0)
    history.is_fenced(history.first)
    lasting = oracle.began("b", second, SECOND)
    history.log[T0].append(B0)
    oracle.read(T0, 2, 2, 2, {})
    assert not oracle.is_decided()
    history.clock_ms = 1000
    history.is_fenced(second, lasting)
    history.ends(T0, ABORT)
    oracle.read(T0, 2, 4, 4, {})
    assert oracle.is_decided()
    oracle.finish()


def test_what_was_in_a_deleted_topic_is_owed_by_nobody() -> None:
    history = History()
    oracle = history.oracle
    history.asks(commits=True)
    oracle.acknowledged(history.open, [b"a:0", b"a:1"])
    history.ends(T0, A0)
    history.ends(T1, A1)
    history.topics.delete(TOPIC_ID)
    oracle.told(history.open, commits=True)
    history.begin(SECOND)
    history.ends(T0, COMMIT)  # by a leader that has not noticed yet
    assert oracle.is_decided()
    oracle.finish()


def test_a_producer_asks_for_the_outcome() -> None:
    with broken("outcome"):
        History().ends(T0, A0, COMMIT)


def test_nothing_is_aborted_that_nobody_aborts() -> None:
    history = History()
    history.clock_ms = 999
    with broken("outcome"):
        history.ends(T0, A0, ABORT)


def test_a_transaction_has_one_outcome() -> None:
    history = History()
    history.committed()
    with broken("one-outcome"):
        history.ends(T1, A0, ABORT)


@pytest.mark.parametrize("is_told_first", [True, False])
def test_a_producer_is_told_the_outcome(is_told_first: bool) -> None:
    history = History()
    history.asks(commits=True)
    history.asks(commits=False)

    def tell() -> None:
        history.oracle.told(history.open, commits=True)

    def end() -> None:
        history.ends(T0, A0, ABORT)

    steps: list[Callable[[], None]] = [tell, end] if is_told_first else [end, tell]
    steps[0]()
    with broken("told"):
        steps[1]()


def test_nothing_of_a_fenced_producer_is_committed() -> None:
    history = History()
    history.asks(commits=True)
    history.begin(SECOND)
    with broken("fenced-committed"):
        history.ends(T0, A0, COMMIT)


@pytest.mark.parametrize("is_told_first", [True, False])
def test_what_is_refused_is_not_committed(is_told_first: bool) -> None:
    history = History()
    history.asks(commits=True)
    history.clock_ms = 1000

    def refuse() -> None:
        history.is_fenced(history.first, history.open)

    def end() -> None:
        history.ends(T0, A0, COMMIT)

    steps: list[Callable[[], None]] = [refuse, end] if is_told_first else [end, refuse]
    steps[0]()
    with broken("refused-committed"):
        steps[1]()


def test_two_producers_have_two_epochs() -> None:
    history = History()
    with broken("one-epoch"):
        history.begin(FIRST)


@pytest.mark.parametrize("epoch", [-1, LAST_EPOCH + 1])
def test_the_last_epoch_is_given_to_nobody(epoch: int) -> None:
    history = History()
    with broken("last-epoch"):
        history.oracle.goes_on(history.first, FIRST._replace(epoch=epoch))


def test_each_epoch_has_a_cause() -> None:
    history = History()
    history.begin(FIRST._replace(epoch=2))  # its transaction is aborted, and it begins
    with broken("epochs"):
        history.begin(FIRST._replace(epoch=4))


def test_an_epoch_is_not_used_up_by_a_request_that_is_refused() -> None:
    history = History()
    refused = history.oracle.came_in("x", NO_PRODUCER, COORDINATOR)
    history.oracle.gave_nothing("x", refused)
    with broken("epochs"):
        history.begin(FIRST._replace(epoch=3))


def test_a_transaction_begins_when_the_last_one_has_ended_everywhere() -> None:
    history = History()
    history.asks(commits=True)
    history.ends(T0, A0, COMMIT)
    history.ends(T1, A1)
    history.oracle.began("b", history.first, FIRST)
    with broken("one-open"):
        history.ends(T0, B0)


def test_a_transaction_may_begin_and_end_and_the_next_one_begin_before_anybody_looks() -> None:
    history = History()
    history.asks(commits=True)
    history.oracle.began("b", history.first, FIRST)
    history.ends(T0, A0, COMMIT, B0)


def test_a_transaction_that_has_ended_already_began_too_early() -> None:
    history = History()
    history.asks(commits=True)
    history.oracle.asks_to_end(history.oracle.began("b", history.first, FIRST), commits=True)
    history.log[T1].append(A1)
    with broken("one-open"):
        history.ends(T0, B0, COMMIT)


def test_a_fenced_producer_does_nothing() -> None:
    history = History()
    early = history.oracle.asks(history.first)
    history.begin(SECOND)
    late = history.oracle.asks(history.first)
    history.is_granted(COMMITS_FIRST, early)
    with broken("fenced-acts"):
        history.is_granted(COMMITS_FIRST, late)
    with broken("fenced-acts"):
        came = history.oracle.came_in("x", FIRST, COORDINATOR)
        history.is_granted(SETTINGS.init(FIRST), late, came=came)


def test_a_producer_is_fenced_by_another() -> None:
    history = History()
    history.clock_ms = 999
    with broken("fenced-wrongly"):
        history.is_fenced(history.first, history.open)


def test_a_producer_that_aborts_is_not_fenced_by_time() -> None:
    history = History()
    history.clock_ms = 1000
    with broken("fenced-wrongly"):
        history.is_fenced(history.first)


def test_a_coordinator_does_not_know_of_an_epoch_that_the_one_before_has_replaced() -> None:
    history = History()
    history.oracle.came_in("x", FIRST, SUCCESSOR)  # writes the next epoch; its answer is lost
    history.is_fenced(history.first)


@pytest.mark.parametrize("coordinator", [COORDINATOR, None])
def test_a_coordinator_knows_of_an_epoch_that_it_has_replaced_itself(coordinator: object) -> None:
    history = History()
    history.oracle.came_in("x", FIRST, coordinator)
    with broken("fenced-wrongly"):
        history.is_fenced(history.first)


def test_a_request_that_is_refused_replaces_no_epoch() -> None:
    history = History()
    history.oracle.gave_nothing("x", history.oracle.came_in("x", FIRST, SUCCESSOR))
    history.oracle.came_in("x", SECOND, SUCCESSOR)  # another producer
    with broken("fenced-wrongly"):
        history.is_fenced(history.first)


def test_a_producer_makes_no_mistake() -> None:
    history = History()
    with broken("mistaken"):
        history.oracle.mistaken(history.first, "INVALID_TXN_STATE")


def test_a_stranger_does_nothing() -> None:
    history = History()
    stranger = history.oracle.stranger("x")
    assert stranger is not None
    for init in (None, stranger):
        came = history.oracle.came_in("x", init, COORDINATOR)
        with broken("stranger-acts"):
            history.oracle.stranger_granted(stranger, "", came)


def test_a_leader_takes_only_what_is_of_the_transaction() -> None:
    history = History()
    history.log[T0].append(record(b"careless"))
    with broken("misplaced"):
        history.oracle.misplaced(history.open, T0, 0, b"careless")
    history.clock_ms = 1000  # the transaction may have ended
    history.oracle.misplaced(history.open, T0, 0, b"careless")


@pytest.mark.parametrize("clock_ms", [0, 1000])
def test_a_leader_takes_nothing_beside_a_transaction_that_its_log_has(clock_ms: int) -> None:
    """However long it lasts: the log shows whether it is open."""
    history = History()
    history.clock_ms = clock_ms
    history.log[T0] += [A0, record(b"b:0", producer_id=8), record(COMMITS, producer_id=8), STRAY]
    with broken("misplaced"):
        history.oracle.misplaced(history.open, T0, 3, b"careless")


@pytest.mark.parametrize(
    "before",
    [[], [A0, ABORT], [record(b"b:0", producer_id=8)], [STRAY._replace(content=b"earlier")]],
)
def test_a_leader_takes_what_is_outside_of_any_transaction_of_its_log(before: list[Entry]) -> None:
    history = History()
    history.log[T0] += [*before, STRAY]
    history.oracle.misplaced(history.open, T0, len(before), b"careless")


def test_a_new_topic_knows_nothing_of_a_transaction_in_the_deleted_one() -> None:
    history = History()
    newer = TopicPartition("t#2", 0)
    history.log |= {newer: [STRAY]}
    history.ends(T0, A0)
    history.topics.delete(TOPIC_ID)
    history.topics.create("t", TopicId(b"u" * 16))
    history.oracle.misplaced(history.open, T0, 0, b"careless")
    history.log[newer] = [A1, STRAY]  # the transaction goes on there
    with broken("misplaced"):
        history.oracle.misplaced(history.open, T0, 1, b"careless")


def test_a_batch_that_came_before_is_no_second_one() -> None:
    history = History()
    history.log[T0] += [A0, A1]
    history.oracle.misplaced(history.open, T0, 1, b"careless")
    history.oracle.misplaced(history.open, T0, 2, b"careless")


def test_no_reader_passes_an_open_transaction() -> None:
    history = History()
    history.log[T0].append(A0)
    with broken("stable"):
        history.oracle.read(T0, 0, 0, 1, {})


@pytest.mark.parametrize("shown", [{}, {0: b"a:1"}, {0: b"a:0", 1: b"b:0"}])
def test_readers_are_shown_what_is_committed(shown: dict[int, bytes]) -> None:
    history = History()
    history.committed()
    with broken("read-committed"):
        history.oracle.read(T0, 0, 2, 2, shown)


def test_records_are_committed_once() -> None:
    history = History()
    history.committed()
    history.ends(T0, A0, COMMIT)
    with broken("exactly-once"):
        history.oracle.finish()


def test_a_transaction_is_committed_wholly() -> None:
    history = History()
    history.committed()
    history.oracle.acknowledged(history.open, [b"a:2"])
    with broken("wholly"):
        history.oracle.finish()
