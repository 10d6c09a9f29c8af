"""Each rule of the oracle of replication, broken by hand beside a history that keeps it."""

from contextlib import nullcontext

import pytest

from quorumlog.chaos.simulation.kernel.rules import Violation
from quorumlog.chaos.simulation.worlds.brokers.oracle import Members, ReplicationOracle
from quorumlog.chaos.simulation.worlds.entries import Entry
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition

OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)
AT = TopicPartition("t", 0)
A, B, C = (Entry(1, value, 0) for value in (b"a", b"b", b"c"))
OTHER = Entry(2, b"other", 0)


def replicated() -> ReplicationOracle:
    """Brokers 1 and 2 hold A and B, of which A is committed; broker 3 holds A and is in no ISR."""
    oracle = ReplicationOracle()
    for broker_id, log in ((1, [A, B]), (2, [A, B]), (3, [A])):
        oracle.recovered(broker_id, AT, [])
        oracle.appended(broker_id, AT, log)
    oracle.elected(AT, Members((1, 2), 1))
    oracle.showed(1, AT, 1, leads=True, leader_epoch=1)
    return oracle


def broken(rule: str) -> "pytest.RaisesExc[Violation]":
    return pytest.raises(Violation, match=f"^{rule}: ")


def test_what_holds_is_accepted() -> None:
    oracle = replicated()
    oracle.showed(1, AT, 2, leads=True, leader_epoch=1)
    oracle.showed(2, AT, 2, leads=False, leader_epoch=1)
    oracle.acknowledge(AT, 1, b"b")
    oracle.appended(3, AT, [B])
    oracle.elected(AT, Members((1, 2, 3), 1))
    oracle.finish()


def test_a_member_of_isr_or_elr_holds_what_is_committed() -> None:
    oracle = replicated()
    oracle.showed(1, AT, 2, leads=True, leader_epoch=1)
    with broken("isr-complete"):
        oracle.elected(AT, Members((1, 2, 3), 1))


def test_nothing_is_committed_that_a_member_lacks() -> None:
    oracle = replicated()
    oracle.elected(AT, Members((1, 2, 3), 1))
    with broken("isr-complete"):
        oracle.showed(1, AT, 2, leads=True, leader_epoch=1)


def test_a_member_that_cuts_what_is_committed_is_seen() -> None:
    with broken("isr-complete"):
        replicated().truncated(2, AT, 0)


def test_a_member_without_power_is_excused_until_it_registers() -> None:
    oracle = replicated()
    oracle.stopped(2, loses_power=True)
    oracle.recovered(2, AT, [])
    oracle.elected(AT, Members((1, 2), 2))
    oracle.registered(2)
    with broken("isr-complete"):
        oracle.elected(AT, Members((1, 2), 3))


def test_only_a_power_loss_shortens_a_log() -> None:
    oracle = replicated()
    oracle.stopped(2, loses_power=False)
    with broken("durability"):
        oracle.recovered(2, AT, [A])


def test_nothing_is_found_that_was_not_written() -> None:
    with broken("recovery"):
        replicated().recovered(2, AT, [A, B, C])


def test_a_follower_does_not_commit_first() -> None:
    with broken("commit-led"):
        replicated().showed(2, AT, 2, leads=False, leader_epoch=1)


def test_nothing_is_shown_that_is_not_held() -> None:
    with broken("commit-held"):
        replicated().showed(3, AT, 2, leads=True, leader_epoch=1)


def test_all_show_the_same() -> None:
    oracle = replicated()
    oracle.truncated(3, AT, 0)
    oracle.appended(3, AT, [OTHER])
    with broken("commit-agreed"):
        oracle.showed(3, AT, 1, leads=False, leader_epoch=1)


def test_what_is_acknowledged_is_committed_there() -> None:
    with broken("acked-committed"):
        replicated().acknowledge(AT, 1, b"b")


def created_again() -> tuple[ReplicationOracle, TopicPartition]:
    """Broker 1 had A in the topic, which was deleted; the re-created topic is empty."""
    oracle = ReplicationOracle()
    oracle.topics.create("t", OLD)
    oracle.recovered(1, oracle.topics.place_of(AT, OLD), [])
    oracle.appended(1, AT, [A])
    oracle.elected(AT, Members((1,), 1))
    oracle.showed(1, AT, 1, leads=True, leader_epoch=1)
    oracle.acknowledge(AT, 0, b"a")
    oracle.topics.delete(OLD)
    oracle.deleted(AT)
    oracle.removed(1, AT)
    oracle.topics.create("t", NEW)
    place = oracle.topics.place_of(AT, NEW)
    oracle.elected(place, Members((1,), 0))
    return oracle, place


def test_a_topic_of_an_old_name_has_records_of_its_own() -> None:
    oracle, place = created_again()
    oracle.recovered(1, place, [])
    oracle.appended(1, place, [B])
    oracle.showed(1, place, 1, leads=True, leader_epoch=0)
    oracle.acknowledge(AT, 0, b"a")  # by the leader of before, late
    oracle.acknowledge(AT, 0, b"b")
    with broken("acked-committed"):
        oracle.acknowledge(AT, 0, b"c")
    oracle.finish()


def test_no_log_of_a_deleted_topic_is_taken_up() -> None:
    oracle, place = created_again()
    with broken("recovery"):
        oracle.recovered(1, place, [A])


def test_sequences_are_committed_once_and_in_order() -> None:
    oracle = ReplicationOracle()
    first, third = Entry(1, b"sequence 0", 0), Entry(1, b"sequence 2", 0)
    oracle.appended(1, AT, [first, third])
    oracle.elected(AT, Members((1,), 1))
    with broken("exactly-once"):
        oracle.showed(1, AT, 2, leads=True, leader_epoch=1)


def after_an_unclean_election() -> ReplicationOracle:
    """Broker 1 lost the first sequences of producer 7, and leads since."""
    oracle = ReplicationOracle(may_lose=True)
    oracle.elected(AT, Members((1,), 2))
    oracle.elected_uncleanly(AT, 1, 2)
    return oracle


@pytest.mark.parametrize(
    ("sequences", "is_right"),
    [([(7, 3), (7, 4), (8, 4), (8, 5)], True), ([(7, 3), (7, 5)], False), ([(7, 3), (7, 3)], False),
     ([(7, 3), (8, 4), (7, 4), (8, 4)], False)],
)  # fmt: skip
def test_sequences_are_in_order_after_an_unclean_election_too(
    sequences: list[tuple[int, int]], is_right: bool
) -> None:
    oracle = after_an_unclean_election()
    values = [(b"sequence %d" % sequence, producer_id) for producer_id, sequence in sequences]
    oracle.appended(1, AT, [Entry(2, value, 0, producer_id) for value, producer_id in values])
    with nullcontext() if is_right else broken("exactly-once"):
        for end in range(1, len(sequences) + 1):  # one after the other, as they are committed
            oracle.showed(1, AT, end, leads=True, leader_epoch=2)


def test_all_replicas_are_equal_in_the_end() -> None:
    with broken("converged"):
        replicated().finish()


def test_a_successor_does_not_lead_in_an_epoch_of_the_process_before() -> None:
    oracle = replicated()
    oracle.stopped(1, loses_power=False)
    with broken("one-process"):
        oracle.showed(1, AT, 2, leads=True, leader_epoch=1)
