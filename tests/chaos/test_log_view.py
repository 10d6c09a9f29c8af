"""Histories of groups and of lookups are judged by the rules of the log, too."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.checkers.checker import Facts
from quorumlog.chaos.checkers.log_view import CHECKER, as_log
from quorumlog.chaos.checkers.registry import judges_of
from quorumlog.chaos.checking import local
from quorumlog.chaos.checking.local import check_in_parts
from quorumlog.chaos.checking.parts import row_groups
from quorumlog.chaos.checking.parts.row_groups import find_row_groups
from quorumlog.chaos.history import HistorySource, Message
from quorumlog.chaos.verify import verify_history
from tests.support.chaos.group_histories import Group, lookups
from tests.support.chaos.hand_made_histories import History, found
from tests.support.chaos.joined_histories import same
from tests.support.chaos.runs import checked_in_runs


def judged(history: History, model: str = "group_log") -> Verdict:
    """Check a history as a whole, and in runs and parts of every checker."""
    table = history.table(dense=True)
    verdict = check_history(table, model)
    assert [one.model for one in judges_of(model, Facts())] == [model, "kafka_log"]
    log = check_history(table, CHECKER)
    for seed in range(3):
        same(checked_in_runs(table, CHECKER, random.Random(seed)), log)
    return verdict


def another_record_was_delivered() -> History:
    """The next owner receives the right record: the last delivery hides the wrong one."""
    group = Group().sent(1, 2)
    group.member(4, 1).deliver((0, 1), (1, 77))
    return group.member(5, 2).deliver((0, 1), (1, 2)).commit(2).final((0, 1), (1, 2), end=2)


def a_record_that_nobody_sent() -> History:
    group = Group().sent(1, 2).member(4, 1).deliver((0, 1), (1, 2), (2, 999)).commit(3)
    return group.final((0, 1), (1, 2), (2, 999), end=3)


def a_record_whose_send_failed() -> History:
    group = Group().sent(1, 2)
    group.send(3, process=7, outcome="fail")
    group.member(4, 1).deliver((0, 1), (1, 2), (2, 3)).commit(3)
    return group.final((0, 1), (1, 2), (2, 3), end=3)


def a_record_twice() -> History:
    group = Group().sent(1, 2, 3, 4)
    records = (0, 1), (1, 2), (2, 3), (3, 4), (4, 4)
    return group.member(4, 1).deliver(*records).commit(5).final(*records, end=5)


def another_record_in_the_end() -> History:
    group = Group().sent(1, 2).member(4, 1).deliver((0, 1), (1, 2)).commit(2)
    return group.final((0, 1), (1, 77), end=2)


def a_record_is_missing_in_the_end() -> History:
    group = Group().sent(1, 2, 3).member(4, 1).deliver((0, 1), (1, 2), (2, 3)).commit(3)
    return group.final((0, 1), (2, 3), end=3)


@pytest.mark.parametrize(
    ("make", "anomalies"),
    [
        (another_record_was_delivered, ["phantom", "inconsistent-offsets"]),
        (a_record_that_nobody_sent, ["phantom"]),
        (a_record_whose_send_failed, ["G1a"]),
        (a_record_twice, ["duplicate"]),
        (another_record_in_the_end, ["phantom", "inconsistent-offsets"]),
        (a_record_is_missing_in_the_end, ["vanished-write"]),
    ],
)
def test_a_log_that_is_wrong_is_found_in_the_history_of_a_group(
    make: Callable[[], History], anomalies: Sequence[str]
) -> None:
    verdict = judged(make())
    assert verdict.valid is False, verdict.as_json()
    assert found(verdict)[: len(anomalies)] == anomalies
    assert {*found(verdict)} <= {*verdict.meanings}
    assert verdict.model == "group_log"


def test_an_acknowledged_record_is_missing_from_a_log_with_lookups() -> None:
    verdict = judged(
        lookups((10, 20, 30), final=((0, 10), (1, 20)), end=2, latest=2), "list_offsets"
    )
    assert verdict.valid is False, verdict.as_json()
    assert "lost-write" in found(verdict)


def test_a_record_has_another_timestamp_than_was_acknowledged() -> None:
    records = (0, 10), (1, 99), (2, 20)
    verdict = judged(lookups((10, 30, 20), final=records, end=3, latest=3), "list_offsets")
    assert verdict.valid is False, verdict.as_json()
    assert found(verdict)[:2] == ["phantom", "inconsistent-offsets"]


def test_a_sound_group_and_sound_lookups_are_valid() -> None:
    """Members begin anywhere, and go back and leave out records after a rebalance."""
    group = Group().sent(1, 2, 3, 4).member(4, 1).deliver((0, 1), (1, 2)).commit(1)
    group.member(5, 2).deliver((1, 2), (2, 3)).commit(3)
    group.rebalanced(4, 3).deliver((3, 4)).commit(4)
    verdict = judged(group.final((0, 1), (1, 2), (2, 3), (3, 4), end=4))
    assert (verdict.valid, found(verdict)) == (True, []), verdict.as_json()
    records = (0, 10), (1, 30), (2, 20)
    verdict = judged(lookups((10, 30, 20), final=records, end=3, latest=3), "list_offsets")
    assert (verdict.valid, found(verdict)) == (True, []), verdict.as_json()


def test_a_member_without_a_join_is_a_member() -> None:
    """A history that begins after the join: its member begins at the group's offset."""
    history = History().sent(1, 2, 3).op(4, "commit", [("x-0", 1, 1)])
    owned = [Message("x-0", -1, 1, f="assigned"), Message("x-0", 1, 2, f="group_poll")]
    history.txn(4, *owned)
    history.ops[-1].f = "group_poll"
    history.op(4, "group_poll", [("x-0", 2, 3)]).op(4, "commit", [("x-0", 3, 1)])
    history.final((0, 1), (1, 2), (2, 3), end=3)
    assert "poll-skip" not in found(judged(history))


def test_the_view_of_a_view_is_the_view() -> None:
    table = another_record_was_delivered().table()
    once = as_log(table)
    assert as_log(once).equals(once)
    assert as_log(table.slice(2, 5)).equals(once.slice(2, as_log(table.slice(2, 5)).num_rows))
    assert as_log(table.slice(0, 0)).num_rows == 0


def test_a_large_history_is_judged_by_all_its_checkers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = another_record_was_delivered().table()
    file = tmp_path / "history.parquet"
    pq.write_table(table, file, row_group_size=3)
    whole = check_history(table, "group_log")
    same(verify_history(file, model="group_log", engine="local"), whole)
    monkeypatch.setattr(local, "MESSAGES_OF_A_TABLE", 1)
    monkeypatch.setattr(local, "MICRO_PER_PART", 2)
    monkeypatch.setattr(row_groups, "ROWS_PER_CHUNK", 3)
    groups = find_row_groups(HistorySource(file))
    assert groups is not None
    assert len(groups.chunks) > 2
    same(verify_history(file, model="group_log", engine="local"), whole)
    assert check_in_parts(groups, judges_of("group_log", Facts())[0]).valid is True
