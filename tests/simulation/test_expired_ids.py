"""Expired transactional ids in the oracle: when they expire, and which requests they allow."""

import pytest

from quorumlog.broker.transactions.core.requests import NO_PRODUCER
from tests.support.transactions.oracle_history import (
    A0,
    COMMIT,
    COMMITS_FIRST,
    COORDINATOR,
    FIRST,
    SECOND,
    SETTINGS,
    T0,
    History,
    broken,
)


def expires(history: History, at_ms: int) -> None:
    """Check that the id may have expired by this time, and not a moment before."""
    history.clock_ms = at_ms - 1
    with broken("fenced-wrongly"):
        history.is_fenced(history.first)
    history.clock_ms = at_ms
    history.is_fenced(history.first)


def test_a_fenced_producer_begins_when_the_id_has_expired() -> None:
    """The coordinator has dropped the id; later it has the producer that began."""
    history = History(expiration_ms=100)
    history.begin(SECOND)
    history.clock_ms = 99
    early = history.oracle.came_in("x", FIRST, COORDINATOR)
    history.clock_ms = 100
    came = history.oracle.came_in("x", FIRST, COORDINATOR)
    with broken("fenced-acts"):
        history.is_granted(SETTINGS.init(FIRST), came=early)
    with broken("fenced-acts"):
        history.is_granted(COMMITS_FIRST)
    history.is_granted(SETTINGS.init(FIRST), came=came)
    late = history.oracle.came_in("x", FIRST, COORDINATOR)
    with broken("fenced-acts"):
        history.is_granted(SETTINGS.init(FIRST), came=late)


def test_a_stranger_begins_when_the_id_has_expired() -> None:
    history = History(expiration_ms=100)
    oracle = history.oracle
    history.clock_ms = 50
    history.is_granted(SETTINGS.add(FIRST, [T0]))
    history.clock_ms = 149
    early = oracle.came_in("x", SECOND, COORDINATOR)
    history.clock_ms = 150
    with broken("stranger-acts"):
        oracle.stranger_granted(SECOND, "InitProducerId", early)
    oracle.stranger_granted(SECOND, "InitProducerId", oracle.came_in("x", SECOND, COORDINATOR))
    with broken("stranger-acts"):
        oracle.stranger_granted(SECOND, "EndTransaction", oracle.came_in("x", None, COORDINATOR))


def test_an_id_that_another_producer_began_to_use_meanwhile_had_expired() -> None:
    """The answer comes late."""
    history = History(expiration_ms=100)
    history.clock_ms = 100
    came = history.oracle.came_in("x", SECOND, COORDINATOR)
    history.is_granted(SETTINGS.init(), came=history.oracle.came_in("x", NO_PRODUCER, COORDINATOR))
    history.oracle.stranger_granted(SECOND, "InitProducerId", came)


@pytest.mark.parametrize("commits", [True, False])
def test_an_id_expires_some_time_after_its_transaction_has_ended(commits: bool) -> None:
    """A repeated EndTxn finds the transaction ended, and does not prolong the id."""
    history = History(expiration_ms=100)
    history.clock_ms = 10
    history.asks(commits=commits)
    history.clock_ms = 90
    history.asks(commits=commits)
    history.is_granted(SETTINGS.end(FIRST, commits=commits))
    history.oracle.told(history.open, commits=commits)
    expires(history, 110)


def test_a_transaction_is_complete_after_its_markers() -> None:
    history = History(expiration_ms=100)
    history.asks(commits=True)
    history.clock_ms = 50
    history.ends(T0, A0)
    history.clock_ms = 60
    history.ends(T0, COMMIT)  # it was not there at 50
    expires(history, 150)


def test_a_coordinator_may_be_ahead_of_an_abort_when_its_time_is_over() -> None:
    history = History(expiration_ms=100)
    history.clock_ms = 1090
    history.asks(commits=False)
    history.oracle.told(history.open, commits=False)
    expires(history, 1100)


def test_a_coordinator_may_be_ahead_of_an_abort_for_a_rival() -> None:
    history = History(expiration_ms=100)
    history.clock_ms = 90
    history.asks(commits=False)
    history.oracle.came_in("x", NO_PRODUCER, COORDINATOR)  # sent, and the response is lost
    history.oracle.told(history.open, commits=False)
    history.clock_ms = 100
    history.oracle.stranger_granted(SECOND, "", history.oracle.came_in("x", SECOND, COORDINATOR))
