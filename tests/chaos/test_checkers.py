"""Each checker on a history where the anomaly is, and on the nearest one where it is not."""

from pathlib import Path

import pytest

from quorumlog.chaos.checkers import Severity, Verdict, check_history
from quorumlog.chaos.history import HistoryError, HistoryWriter, read_history
from quorumlog.chaos.verify import verify_history
from tests.support.chaos.hand_made_histories import History, found, rows_of


def result(verdict: Verdict, name: str) -> tuple[int, Severity]:
    (one,) = [result for result in verdict.results if result.name == name]
    return one.count, one.severity


def test_all_was_read_and_nothing_is_wrong() -> None:
    history = History().sent(1, 2, 3).poll((0, 1), (1, 2)).poll((2, 3))
    verdict = history.final((0, 1), (1, 2), (2, 3), end=3).verdict()
    assert (verdict.valid, found(verdict), verdict.unknown_because) == (True, [], [])
    assert verdict.operations == 7
    assert verdict.figures["acknowledged"] == 3
    assert verdict.figures["polled"] == 6


def test_without_operations_or_final_reads_of_every_key_the_verdict_is_unknown() -> None:
    verdict = History().verdict()
    assert (verdict.valid, verdict.operations) == ("unknown", 0)
    assert verdict.unknown_because == ["the history is empty"]
    verdict = History().sent(1).poll((0, 1)).verdict()
    assert verdict.valid == "unknown"
    assert "there are no final reads" in verdict.unknown_because
    history = History().sent(1, 2).send(7, 0, key="x-1").final((0, 1), (1, 2))
    verdict = history.verdict()
    assert verdict.valid == "unknown"
    assert any("x-1" in reason for reason in verdict.unknown_because)


def test_an_unread_tail_is_undecided_until_the_end_was_reached() -> None:
    verdict = History().sent(1, 2).final((0, 1)).verdict()
    assert (verdict.valid, found(verdict)) == ("unknown", ["unseen"])
    assert result(verdict, "unseen") == (1, Severity.UNKNOWN)
    verdict = History().sent(1, 2).final((0, 1), end=1).verdict()
    assert (verdict.valid, found(verdict)) == (
        False,
        ["lost-write", "log-end-regression", "unseen"],
    )
    assert verdict.unknown_because == []
    verdict = check_history(History().sent(1, 2).poll((0, 1)).table(final_reads="unmarked"))
    assert (verdict.valid, found(verdict)) == (False, ["unseen"])


def test_an_acknowledged_value_below_what_was_read_is_lost() -> None:
    verdict = History().sent(1, 2).final((1, 2), end=2).verdict()
    assert result(verdict, "lost-write") == (1, Severity.INVALID)
    (witness,) = verdict.results[0].witnesses
    assert [op["value"] for op in witness["ops"]] == [1, 2]
    verdict = History().send(1).send(2, 0).final((0, 2), end=1).verdict()
    assert result(verdict, "lost-write") == (1, Severity.INVALID)
    rows = [("x-0", 0, 1), ("x-0", -1, 2)]
    verdict = History().op(0, "send", rows, "info").send(3, 1).final((1, 3), end=2).verdict()
    assert result(verdict, "lost-write") == (1, Severity.INVALID)


def test_a_value_polled_once_must_stay() -> None:
    verdict = History().sent(1, 2).poll((0, 1), (1, 2)).final((0, 1), end=1).verdict()
    assert (verdict.valid, found(verdict)) == (False, ["vanished-write", "log-end-regression"])
    assert [one.explained for one in verdict.results] == [0, 1]
    roles = [op["role"] for op in verdict.results[0].witnesses[0]["ops"]]
    assert roles == ["vanished send", "polled", "read past"]


def test_a_value_of_another_key_is_a_phantom_and_one_sent_twice_cannot_be_judged() -> None:
    verdict = History().sent(1).final((0, 1), end=1).final((0, 1), key="y-0", end=1).verdict()
    assert "phantom" in found(verdict)
    verdict = History().send(1, 0).send(1, 1).final((0, 1), (1, 1), end=2).verdict()
    assert (verdict.valid, found(verdict)) == ("unknown", [])  # two records of two sends
    assert verdict.unknown_because == ["a value was sent more than once: 1 (x-0:1)"]


def test_an_anomaly_explains_those_that_follow_from_it() -> None:
    verdict = History().sent(1, 2).final((0, 1), (1, 2), (2, 1), end=3).verdict()
    assert found(verdict)[0] == "duplicate"
    followers = [one for one in verdict.results if one.name != "duplicate"]
    assert followers
    assert all(one.explained == one.count for one in followers)
    verdict = History().sent(1, 2, 3).final((0, 1), (2, 3), end=3).verdict()
    assert found(verdict) == ["lost-write", "int-poll-skip", "unseen"]
    assert [one.explained for one in verdict.results] == [0, 1, 1]


@pytest.mark.parametrize(
    ("f", "keys", "skips"),
    [
        ("assign", ["x-0"], True),  # kept: the position stays
        ("assign", ["y-0"], False),
        ("subscribe", ["y-0"], False),
        ("seek", ["x-0"], False),
        ("seek", ["y-0"], True),
        ("crash", [], False),
    ],
)
def test_a_position_that_was_changed_forgives_a_skip(f: str, keys: list[str], skips: bool) -> None:
    history = History().sent(1, 2, 3).poll((0, 1)).op(1, f, [(key, -1, 0) for key in keys])
    verdict = history.poll((2, 3)).final((0, 1), (1, 2), (2, 3), end=3).verdict()
    assert ("poll-skip" in found(verdict)) is skips


def test_a_group_moves_its_members_and_a_change_that_failed_moves_nobody() -> None:
    history = History().sent(1, 2, 3).poll((0, 1)).op(1, "assign", [("y-0", -1, 0)], "fail")
    verdict = history.poll((2, 3)).final((0, 1), (1, 2), (2, 3), end=3).verdict()
    assert found(verdict) == ["poll-skip"]
    history = History().sent(1, 2, 3).op(1, "subscribe", [("x-0", -1, 0)]).poll((0, 1))
    verdict = history.poll((2, 3)).poll((0, 1)).final((0, 1), (1, 2), (2, 3), end=3).verdict()
    assert verdict.valid is True
    assert result(verdict, "poll-skip") == (1, Severity.ALLOWED)
    assert result(verdict, "nonmonotonic-poll") == (1, Severity.ALLOWED)
    history = History().sent(1, 2, 3).poll((0, 1), (2, 3), details="rebalanced")
    assert history.final((0, 1), (1, 2), (2, 3), end=3).verdict().valid is True


def test_nobody_may_go_below_what_was_acknowledged() -> None:
    verdict = History().send(1, 1).send(2, 0, process=5).final((0, 2), (1, 1), end=2).verdict()
    assert found(verdict) == ["nonlinearizable-log"]
    roles = [op["role"] for op in verdict.results[0].witnesses[0]["ops"]]
    assert roles == ["seen first", "sent later"]


def test_sends_to_one_key_in_one_operation_may_be_interleaved() -> None:
    history = (
        History()
        .op(0, "send", [("x-0", 0, 1), ("x-0", 2, 3)], at=(0, 10))
        .send(2, 1, process=5, at=(0, 10))
    )
    verdict = history.final((0, 1), (1, 2), (2, 3), end=3).verdict()
    assert (verdict.valid, verdict.figures["interleaved_sends"]) == (True, 1)


def test_the_worst_lag_is_how_long_a_reader_went_without_a_known_record() -> None:
    history = History().op(1, "assign", [("x-0", -1, 0)], at=(0, 5))
    history.send(1, 0, at=(0, 10)).send(2, 1, at=(10, 20)).poll((0, 1), at=(25, 30))
    history.poll(at=(31, 40)).poll((1, 2), at=(140, 150))
    verdict = history.final((0, 1), (1, 2), end=2).verdict()
    assert verdict.figures["worst_lag_ns"] == 130


def test_a_reader_is_late_from_when_it_came_until_it_stopped() -> None:
    history = History().send(1, 0, at=(0, 10)).op(1, "assign", [("x-0", -1, 0)], at=(100, 105))
    verdict = history.poll((0, 1), at=(110, 120)).final((0, 1), end=1).verdict()
    assert verdict.figures["worst_lag_ns"] == 15
    history = History().op(1, "assign", [("x-0", -1, 0)], at=(0, 5)).sent(1)
    history.poll((0, 1), at=(100, 200)).send(2, 1, at=(150, 250)).poll(at=(300, 700))
    history.send(3, 2, at=(800, 900))  # no reader waits for this one any more
    verdict = history.final((0, 1), (1, 2), (2, 3), end=3).verdict()
    assert verdict.figures["worst_lag_ns"] == 700 - 250


@pytest.mark.parametrize("outcome", ["ok", "fail"])
def test_polls_that_return_nothing_end_no_lag(outcome: str) -> None:
    history = History().op(1, "assign", [("x-0", -1, 0)], at=(0, 5)).send(1, 0, at=(6, 10))
    for start in range(20, 1_000, 20):
        history.poll(outcome=outcome, at=(start, start + 10))
    verdict = history.final((0, 1), end=1).verdict()
    assert verdict.figures["worst_lag_ns"] == 990 - 10


def test_a_very_late_read_is_named_and_allowed() -> None:
    second = 1_000_000_000
    history = History().op(1, "assign", [("x-0", -1, 0)], at=(0, 5)).send(1, 0, at=(6, 10))
    history.poll(at=(20, second)).poll((0, 1), at=(second, 12 * second))
    verdict = history.final((0, 1), end=1).verdict()
    assert (verdict.valid, found(verdict)) == (True, ["late-read"])
    assert result(verdict, "late-read") == (1, Severity.ALLOWED)
    roles = [op["role"] for op in verdict.results[0].witnesses[0]["ops"]]
    assert roles == ["known by", "polled at last"]


def test_witnesses_name_the_active_faults_and_are_bounded() -> None:
    history = History().send(1, 0).nemesis("kill", "2").send(2, 1).nemesis("start", "2")
    verdict = history.send(3, 2).final((0, 1), (2, 3), end=3).verdict()
    (witness,) = verdict.results[0].witnesses
    assert [op["faults"] for op in witness["ops"]] == [["kill 2"], []]
    assert verdict.figures["faults"] == 1
    history = History().sent(*range(1, 101)).final((99, 100), end=100)
    verdict = history.verdict()
    lost = verdict.results[0]
    assert (lost.name, lost.count, len(lost.witnesses)) == ("lost-write", 99, 32)
    assert lost.witnesses[0]["ops"][0]["value"] == 1


@pytest.mark.parametrize("dense", [True, False])
def test_a_hole_is_a_finding_in_a_history_that_is_dense(dense: bool, tmp_path: Path) -> None:
    history = History().send(1, 0).send(2, 2).poll((0, 1), (2, 2)).final((0, 1), (2, 2), end=3)
    with HistoryWriter(tmp_path, meta={"dense": dense}) as writer:
        for row in rows_of(history.ops):
            writer.write(row)
    for file in ("history.jsonl", "history.parquet"):
        verdict = verify_history(tmp_path / file, engine="local")
        assert (verdict.valid, found(verdict)) == ((False, ["hole"]) if dense else (True, []))


def test_a_header_that_is_neither_dense_nor_not_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text('{"quorumlog_history": 2, "dense": "yes"}\n{"end": {"events": 0}}\n')
    with pytest.raises(HistoryError, match="dense is neither true nor false: 'yes'"):
        read_history(file)
