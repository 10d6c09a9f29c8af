"""The silence of the faults of a run: measured from its history, by any engine."""

import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.checkers.fault_phase import acks_of, fault_phase_of, joined
from quorumlog.chaos.checkers.kafka_log import CHECKER
from quorumlog.chaos.checkers.verdict import FaultPhase, Valid
from quorumlog.chaos.faults.rows import (
    PHASE,
    PHASE_OVER,
    PhaseTerms,
    phase_details,
    read_phase_details,
)
from quorumlog.chaos.history import NEMESIS, read_meta, write_meta
from quorumlog.chaos.run.figures import silent_after_ms
from quorumlog.chaos.run.run_directory import VERDICT_FILE, keep_verdict
from tests.chaos.test_report import report_of
from tests.support.chaos.hand_made_histories import History, Op
from tests.support.chaos.runs import checked_in_runs

S = 1_000_000_000
TERMS = PhaseTerms(acks=("send",), voters=(1, 2, 3), brokers=(1, 2, 3), gap_ms=1_000)


class Run:
    """A history of sends at the given times, and of faults, with a phase of 2 s to 12 s."""

    def __init__(self, *acks_s: float, terms: PhaseTerms = TERMS, until_s: float = 12.0) -> None:
        self.history = History()
        self._row(2.0, PHASE, "1,2,3", phase_details(terms))
        self.sent = 0
        for at_s in acks_s:
            self.send(at_s)
        self._row(until_s, PHASE_OVER, "1,2,3")

    def send(self, at_s: float, f: str = "send") -> None:
        at = (round(at_s * S) - 1_000, round(at_s * S))
        self.history.op(100 + self.sent, f, [("x-0", self.sent, self.sent + 1)], at=at)
        self.sent += 1

    def fault(self, f: str, node: str, *span_s: float, number: int, undo: str) -> "Run":
        for at_s, row in zip(span_s, (f, undo), strict=True):
            self._row(at_s, row, node, f"#{number} {f}")
        return self

    def _row(self, at_s: float, f: str, node: str, details: str = "") -> None:
        at_ns = round(at_s * S)
        op = Op(NEMESIS, f, at_ns, at_ns, node=node, details=details)
        self.history.ops.append(op)

    def table(self) -> pa.Table:
        rows = [("x-0", n, n + 1) for n in range(self.sent)]
        at = (30 * S, 30 * S + 1_000)
        self.history.op(9, "final_poll", rows, at=at)
        self.history.op(9, "final_end", [("x-0", self.sent, 0)], at=(31 * S, 31 * S + 1_000))
        return self.history.table()


def every(step_s: float, start_s: float, end_s: float) -> list[float]:
    return [start_s + n * step_s for n in range(round((end_s - start_s) / step_s))]


def phase_of(run: Run) -> FaultPhase:
    phase = fault_phase_of(run.table())
    assert phase is not None
    return phase


def test_gaps_longer_than_a_second_are_silent_also_at_the_ends_of_the_phase() -> None:
    # Silent: 2 to 3.5, 5.4 to 8. Not silent: 8.9 to 9.8.
    acks = [1.9, *every(0.1, 3.5, 5.5), *every(0.1, 8.0, 9.0), *every(0.1, 9.8, 12.0), 12.5]
    phase = phase_of(Run(*acks))
    assert (phase.seconds, round(phase.silent_s, 3), round(phase.longest_s, 3)) == (10.0, 4.1, 2.6)
    assert (phase.silent_percent, phase.majority_percent, phase.doubt) == (41, 100, "")
    assert [tuple(round(at_s, 3) for at_s in gap) for gap in phase.gaps_s] == [(2, 3.5), (5.4, 8)]
    assert "no acknowledgement in 41 % of it" in phase.text
    assert "the longest 2.6 s" in phase.text


@pytest.mark.parametrize(("end_s", "valid"), [(11.9, True), (12.4, "unknown")])
def test_a_phase_that_is_silent_for_most_of_the_time_leaves_the_verdict_unknown(
    end_s: float, valid: Valid
) -> None:
    run = Run(*every(0.1, end_s, 22.0), until_s=22.0)  # silent from 2 s on
    verdict = check_history(run.table())
    assert verdict.valid == valid
    assert verdict.fault_phase is not None
    reasons = [reason.partition(", without")[0] for reason in verdict.unknown_because]
    said = "the cluster acknowledged nothing for 52 % of the faults"
    assert reasons == ([said] if valid == "unknown" else [])


def test_only_the_operations_that_the_workload_offers_are_acknowledgements() -> None:
    run = Run(2.5)
    for at_s in every(0.5, 3.0, 12.0):
        at = (round(at_s * S), round(at_s * S) + 1_000)
        run.history.op(1, "poll", [("x-0", 0, 1)], at=at)
    assert phase_of(run).silent_percent == 95


def test_a_short_phase_or_none_is_not_judged() -> None:
    short = phase_of(Run(until_s=13.9))
    assert (short.silent_percent, short.doubt) == (100, "")
    assert check_history(Run(2.1, until_s=13.9).table()).valid is True
    history = History().sent(1).nemesis("kill", "2").final((0, 1), end=1)
    verdict = check_history(history.table())
    assert (verdict.valid, verdict.fault_phase, verdict.as_json()["fault_phase"]) == (
        True, None, None,
    )  # fmt: skip
    unfinished = Run(2.5)
    unfinished.history.ops = [op for op in unfinished.history.ops if op.f != PHASE_OVER]
    assert fault_phase_of(unfinished.table()) is None


def test_the_time_with_an_untouched_majority() -> None:
    run = Run(*every(0.1, 2.0, 12.0))
    run.fault("kill", "1", 3.0, 6.0, number=1, undo="start")
    run.fault("pause", "2", 5.0, 9.0, number=2, undo="resume")  # with the kill: 1 s
    run.fault("partition_one", "3", 8.0, 8.5, number=3, undo="stop-partition_one")  # 0.5 s
    run.fault("reply_lost", "1,2,3", 2.0, 11.0, number=4, undo="stop-reply_lost")  # not away
    phase = phase_of(run)
    assert (phase.majority_s, phase.majority_percent) == (8.5, 85)
    assert phase.judged_s == 10.0  # no single fault took a majority


def test_voters_and_brokers_need_a_majority_each() -> None:
    terms = TERMS._replace(voters=(1, 2, 3), brokers=(4, 5, 6))
    for nodes, percent in (("1", 100), ("1,4", 100), ("1,2", 80), ("4,5", 80)):
        run = Run(*every(0.1, 2.0, 12.0), terms=terms)
        run.fault("kill", nodes, 3.0, 5.0, number=1, undo="start")
        assert phase_of(run).majority_percent == percent


def test_a_removed_voter_and_a_killed_one_leave_no_majority_of_three() -> None:
    run = Run(*every(0.1, 2.0, 12.0))
    run.fault("remove_voter", "1", 3.0, 7.0, number=1, undo="add_voter")
    run.fault("kill", "2", 5.0, 6.0, number=2, undo="start")
    assert phase_of(run).majority_percent == 90


def test_clients_that_are_cut_off_reach_no_node() -> None:
    run = Run(*every(0.1, 2.0, 12.0))
    run.fault("isolate_role", "clients", 3.0, 5.0, number=1, undo="stop-isolate_role")
    assert phase_of(run).majority_percent == 80


def test_a_fault_that_takes_most_nodes_by_definition_silences_them_as_it_should() -> None:
    acks = [*every(0.1, 2.0, 4.0), *every(0.1, 21.0, 22.0)]  # silent from 3.9 s to 21 s

    def killed(until_s: float, *nodes: str) -> FaultPhase:
        run = Run(*acks, until_s=22.0)
        for number, names in enumerate(nodes, start=1):
            run.fault("kill", names, 4.0, until_s, number=number, undo="start")
        return phase_of(run)

    phase = killed(20.0, "1,2,3")
    assert (phase.silent_percent, phase.doubt) == (86, "")
    assert (phase.judged_s, round(phase.untested_s, 3)) == (4.0, 1.1)
    assert phase.text.endswith("; 80 % passed in faults that take most nodes by definition")
    short = killed(5.0, "1,2,3")
    assert (short.judged_s, round(short.untested_s, 3)) == (19.0, 16.1)
    assert "85 % of the faults" in short.doubt
    overlapping = killed(20.0, "1", "2", "3")
    assert (overlapping.silent_percent, overlapping.majority_percent) == (86, 20)
    assert "86 % of the faults" in overlapping.doubt


@pytest.mark.parametrize("seed", range(40))
def test_thinned_parts_have_the_gaps_of_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    run = Run(*sorted(rng.uniform(2, 12) for _ in range(rng.choice([0, 3, 20, 300]))))
    table = run.table()
    whole = acks_of(table)
    cuts = [table.slice(start, 7) for start in range(0, table.num_rows, 7)]
    rng.shuffle(cuts)
    assert {f: times.tolist() for f, times in joined(map(acks_of, cuts)).items()} == {
        f: times.tolist() for f, times in whole.items()
    }
    assert all(len(times) <= 2 * 320 for times in whole.values())
    times_ns = sorted(op.end_ns or 0 for op in run.history.ops if op.f == "send")
    points = [2 * S, *times_ns, 12 * S]
    gaps = [(b - a) / S for a, b in pairwise(points) if b - a > S]
    phase = fault_phase_of(table)
    assert phase is not None
    assert phase.silent_s == pytest.approx(sum(gaps))
    assert checked_in_runs(table, CHECKER, rng).as_json() == check_history(table).as_json()


def test_the_terms_are_read_as_written_and_nothing_else_is() -> None:
    terms = PhaseTerms(acks=("create", "delete"), voters=(1,), brokers=(), gap_ms=1_500)
    assert read_phase_details(phase_details(terms)) == terms
    assert read_phase_details("acks send") is None
    assert [silent_after_ms(rate) for rate in (600.0, 20.0, 4.0)] == [1_000, 1_000, 2_500]


def test_a_report_shows_the_share_and_marks_the_gaps(tmp_path: Path) -> None:
    run = Run(*every(0.1, 2.0, 6.0), *every(0.1, 9.0, 12.0))
    run.fault("kill", "1", 5.0, 7.0, number=1, undo="start")
    page = report_of(run.table(), tmp_path)
    assert "<b>31 %</b><span>of the faults without an acknowledgement</span>" in page
    assert "<b>100 %</b><span>of the faults with an untouched majority</span>" in page
    assert "Faults of 10.0 s: no acknowledgement in 31 % of it" in page
    assert page.count('<rect class="silent"') == 1
    assert "no acknowledgement from 5.90 s to 9.00 s" in page


def test_the_verdict_is_kept_and_meta_json_has_the_silence(tmp_path: Path) -> None:
    verdict = check_history(Run(*every(0.1, 6.0, 12.0)).table())
    keep_verdict(tmp_path, verdict)
    assert read_meta(tmp_path) == {}  # of a history without one
    write_meta(tmp_path, {"workload": "append_read"})
    keep_verdict(tmp_path, verdict)
    assert read_meta(tmp_path) == {
        "workload": "append_read",
        "fault_phase": {
            "seconds": 10.0,
            "silent_percent": 40,
            "longest_silence_s": 4.0,
            "untouched_majority_percent": 100,
            "taken_by_definition_percent": 0,
        },
    }
    assert '"silent_percent": 40' in (tmp_path / VERDICT_FILE).read_text()
