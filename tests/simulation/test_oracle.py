"""Each rule of the oracle, with a history that breaks it: the oracle must find it."""

from collections.abc import Callable

import pytest

from quorumlog.chaos.simulation.kernel.rules import Violation
from quorumlog.chaos.simulation.worlds.entries import Entry
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle
from quorumlog.chaos.simulation.worlds.quorum.quotas import quotas_after, value_of

A, B, C = (Entry(1, value_of(number), 0) for number in (1, 2, 3))
NEWER = Entry(2, b"n", 0)


def oracle() -> Oracle:
    """Three voters hold A and B, durably."""
    made = Oracle((1, 2, 3), (1, 2, 3))
    for node_id in (1, 2, 3):
        made.appended(node_id, [A, B])
        made.flushed(node_id, 2)
    return made


def test_the_good_story_is_good() -> None:
    good = oracle()
    good.became_leader(1, 1)
    good.saw_vote(2, 1, 1)
    good.saw_vote(2, 1, 1)
    good.advanced(1, 2, leads_epoch=1)
    good.advanced(2, 1, leads_epoch=None)
    good.acknowledge(1, B)
    good.became_leader(2, 2)
    good.recovered(3, [A, B], 1)
    for node_id in (1, 2, 3):
        good.finish(node_id, [A, B])


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ("one-leader", [lambda it: it.saw_leader(1, 1), lambda it: it.saw_leader(2, 1)]),
        ("one-vote", [lambda it: it.saw_vote(1, 1, 2), lambda it: it.saw_vote(1, 1, 3)]),
        ("epoch-monotone", [lambda it: it.showed_epoch(1, 2), lambda it: it.showed_epoch(1, 1)]),
        (
            "epoch-durable",
            [lambda it: it.showed_epoch(1, 2), lambda it: it.recovered(1, [A, B], 1)],
        ),
        ("log-matching", [lambda it: it.appended(1, [C]), lambda it: it.appended(2, [B])]),
        ("durability", [lambda it: it.recovered(1, [A], 1)]),
        ("recovery", [lambda it: it.recovered(1, [A, B, C], 1)]),
        ("commit-held", [lambda it: it.advanced(1, 3, leads_epoch=1)]),
        ("commit-own-epoch", [lambda it: it.advanced(1, 2, leads_epoch=2)]),
        ("commit-led", [lambda it: it.advanced(2, 1, leads_epoch=None)]),
        ("acked-committed", [lambda it: it.acknowledge(0, A)]),
    ],
)
def test_the_last_step_breaks_a_rule(rule: str, steps: list[Callable[[Oracle], None]]) -> None:
    bad = oracle()
    for step in steps[:-1]:
        step(bad)
    with pytest.raises(Violation, match=rule):
        steps[-1](bad)


def test_a_vote_is_found_again() -> None:
    bad = oracle()
    bad.saw_vote(1, 2, 3)
    bad.remembered(1, 2, 3)
    bad.remembered(1, 3, -1)  # of a newer epoch: no vote yet
    with pytest.raises(Violation, match="vote-durable"):
        bad.remembered(1, 2, -1)


def test_a_leader_holds_what_older_leaders_committed() -> None:
    bad = oracle()
    bad.advanced(1, 2, leads_epoch=1)
    bad.recovered(3, [A, B], 1)
    bad.truncated(3, 1)
    bad.became_leader(3, 1)  # elected before, with a late response
    with pytest.raises(Violation, match="leader-completeness"):
        bad.became_leader(3, 2)


def test_logs_match_before_an_equal_record() -> None:
    bad = oracle()
    bad.appended(1, [NEWER])
    bad.truncated(2, 0)
    bad.appended(2, [A, Entry(2, b"m", 0)])
    with pytest.raises(Violation, match="log-matching"):
        bad.appended(2, [NEWER])


def test_nothing_committed_is_truncated() -> None:
    bad = oracle()
    bad.advanced(1, 2, leads_epoch=1)
    bad.showed_epoch(2, 1)
    with pytest.raises(Violation, match="no-truncation-below-commit"):
        bad.truncates(2, 1)


def test_an_older_leader_need_not_hold_what_a_newer_leader_has_committed() -> None:
    good = Oracle((1, 2, 3), (1, 2, 3))
    good.showed_epoch(3, 1)
    for node_id in (1, 2, 3):
        good.appended(node_id, [NEWER])
    for node_id in (1, 2):
        good.flushed(node_id, 1)
    good.advanced(1, 1, leads_epoch=2)
    good.truncates(3, 0)
    good.showed_epoch(3, 2)
    with pytest.raises(Violation, match="no-truncation-below-commit"):
        good.truncates(3, 0)


def test_a_node_cuts_nothing_that_it_knows_to_be_committed() -> None:
    bad = oracle()
    bad.advanced(1, 2, leads_epoch=1)
    bad.advanced(2, 2, leads_epoch=None)
    with pytest.raises(Violation, match="no-truncation-below-commit"):
        bad.truncates(2, 1)


def test_what_is_committed_is_durable_on_a_majority() -> None:
    bad = oracle()
    bad.appended(1, [C])
    bad.appended(2, [C])
    bad.flushed(1, 3)
    with pytest.raises(Violation, match="commit-durable"):
        bad.advanced(1, 3, leads_epoch=1)


def test_what_is_committed_is_agreed() -> None:
    bad = oracle()
    bad.advanced(1, 2, leads_epoch=1)
    bad.truncated(3, 1)
    bad.appended(3, [NEWER])
    with pytest.raises(Violation, match="commit-agreed"):
        bad.advanced(3, 2, leads_epoch=None)


def test_a_node_never_takes_a_commit_back() -> None:
    bad = oracle()
    bad.advanced(1, 2, leads_epoch=1)
    bad.recovered(1, [A, B], 1)
    bad.advanced(1, 1, leads_epoch=None)  # a new process has no leader epoch at first
    with pytest.raises(Violation, match="commit-monotone"):
        bad.advanced(1, 1, leads_epoch=None)


def test_the_end_is_what_was_said() -> None:
    bad = oracle()
    bad.advanced(1, 2, leads_epoch=1)
    with pytest.raises(Violation, match="log-file"):
        bad.finish(1, [A])
    bad.truncated(3, 1)
    with pytest.raises(Violation, match="converged"):
        bad.finish(3, [A])
    bad.acknowledge(1, B)
    with pytest.raises(Violation, match="acked-lost"):
        bad.finish(3, [A])


STATE = quotas_after({}, [A, B])


def committed_oracle() -> Oracle:
    """A and B are committed, and node 3 has lost both."""
    made = oracle()
    made.advanced(1, 2, leads_epoch=1)
    made.logs[3], made.durable_ends[3] = [], 0
    return made


def test_a_node_goes_on_from_a_snapshot() -> None:
    good = committed_oracle()
    good.installs(3, 2, STATE)
    good.installed(3)
    assert good.records_below(3, 2, 2, STATE) == [A, B]
    good.recovered(3, [A, B], 1)
    good.finish(3, [A, B])


def test_a_crash_in_an_installation_leaves_the_log_or_the_snapshot() -> None:
    for found in ([A], [A, B]):
        good = committed_oracle()
        good.logs[3], good.durable_ends[3] = [A], 1
        good.installs(3, 2, STATE)
        good.recovered(3, found, 1)
    bad = committed_oracle()
    bad.logs[3], bad.durable_ends[3] = [A], 1
    bad.installs(3, 2, STATE)
    with pytest.raises(Violation, match="durability"):
        bad.recovered(3, [], 1)


def test_a_snapshot_holds_what_all_have_committed() -> None:
    with pytest.raises(Violation, match="applied-equal"):
        committed_oracle().installs(3, 2, quotas_after({}, [B]))
    with pytest.raises(Violation, match="snapshot-committed"):
        oracle().installs(3, 2, STATE)


def test_a_snapshot_is_not_older_than_what_a_node_knows() -> None:
    with pytest.raises(Violation, match="snapshot-behind"):
        committed_oracle().installs(1, 1, quotas_after({}, [A]))


def test_no_records_are_missing_between_a_snapshot_and_the_log() -> None:
    with pytest.raises(Violation, match="no-gap"):
        committed_oracle().records_below(3, 2, 1, quotas_after({}, [A]))
