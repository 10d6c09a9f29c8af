"""The verdict: how results merge, what keeps it from being valid, a topic that is created again."""

import itertools
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest

from quorumlog.chaos.checkers import CheckResult, Severity, Valid, Verdict, check_history
from quorumlog.chaos.checkers.checker import Checker
from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.kafka_log import ANOMALIES
from quorumlog.chaos.checkers.registry import CHECKERS
from quorumlog.chaos.checkers.verdict import Gap, Partial, merge, worst
from quorumlog.chaos.history import HistoryWriter, Message
from quorumlog.chaos.history.operations_table import table_of
from quorumlog.chaos.report.fault_plot import bars_of
from quorumlog.chaos.verify import verify_history
from quorumlog.chaos.workloads.recreated_topic import KINDS, WORKLOAD
from tests.support.chaos.hand_made_histories import History, rows_of


def test_the_worst_verdict_wins() -> None:
    values: list[Valid] = [True, "unknown", False]
    for one, other in itertools.product(values, values):
        assert worst([one, other]) == values[max(values.index(one), values.index(other))]
    assert worst([]) == "unknown"


def part(name: str, severity: Severity, *indexes: int) -> Partial:
    witnesses = [{"key": "k", "note": "", "ops": [{"index": index}]} for index in indexes]
    result = CheckResult(name=name, severity=severity, count=len(indexes), witnesses=witnesses)
    return Partial([result], {"polled": 1}, {"lag": max(indexes)}, {"odd": Gap(1, [f"{indexes}"])})


def test_parts_can_be_merged_in_any_order() -> None:
    parts = [
        part("duplicate", Severity.INVALID, 30, 10),
        part("poll-skip", Severity.ALLOWED, 1, 2),
        part("poll-skip", Severity.INVALID, 50),
        part("phantom", Severity.INVALID, *range(100, 200)),
        part("duplicate", Severity.INVALID, 20),
    ]
    merged = [asdict(merge(order, ANOMALIES)) for order in itertools.permutations(parts)]
    assert all(each == merged[0] for each in merged)
    results = merged[0]["results"]
    names = [(one["name"], one["count"], len(one["witnesses"])) for one in results]
    assert names == [("phantom", 100, 32), ("duplicate", 3, 3), ("poll-skip", 1, 1)]
    assert [one["ops"][0]["index"] for one in results[1]["witnesses"]] == [10, 20, 30]
    assert (merged[0]["counts"], merged[0]["peaks"]) == ({"polled": 5}, {"lag": 199})


@pytest.mark.parametrize("checker", CHECKERS.values(), ids=CHECKERS)
def test_every_anomaly_has_one_rank_and_a_meaning(checker: Checker) -> None:
    names = [anomaly.name for anomaly in checker.anomalies]
    assert len({*names}) == len(names)
    assert all(anomaly.meaning.endswith(".") for anomaly in checker.anomalies)
    assert checker.entries.field("key").type == pa.string()


def test_an_offset_in_an_invocation_is_no_acknowledgement() -> None:
    row = rows_of(History().sent(1).ops)[0]
    row = replace(row, messages=(row.messages[0]._replace(offset=0),))
    verdict = check_history(table_of([row]))
    assert (verdict.valid, verdict.figures["acknowledged"]) == ("unknown", 0)
    assert verdict.figures["indeterminate"] == 1


def test_faults_last_until_they_are_taken_back() -> None:
    history = History().nemesis("kill-all", "1,2").nemesis("pause", "3").nemesis("start", "1,2")
    history.nemesis("resume", "2").nemesis("resume", "3").nemesis("partition").nemesis("heal")
    history.nemesis("start-clock").nemesis("stop-clock").nemesis("kill", "1")
    bands = fault_bands(history.table())
    assert [(str(band), band.start_ns // 10**6) for band in bands] == [
        ("kill-all 1,2", 0),
        ("pause 3", 1),
        ("partition", 5),
        ("start-clock", 7),
        ("kill 1", 9),
    ]
    assert [band.end_ns // 10**6 for band in bands[:4]] == [2, 4, 6, 8]
    assert bands[4].end_ns > 10**18


def test_overlapping_actions_end_only_what_they_began() -> None:
    rows = [
        ("pause", "1,3", "#1 pause_kill: partition-leader"),
        ("kill", "1,2,3", "#2 kill_all: all"),
        ("kill", "2", "#1 pause_kill: partition-leader"),
        ("resume", "1", "#1 pause_kill: ended by #2 kill_all"),
        ("resume", "3", "#1 pause_kill: ended by #2 kill_all"),
        ("start", "2", "#1 pause_kill"),
        ("kill", "1", "#3 kill: any"),
        ("start", "1,2,3", "#2 kill_all"),
        ("starve", "2", "#4 starve: any"),
        ("start", "1", "#3 kill"),
        ("feed", "2", "#4 starve"),
        ("stop", "3", "#5 rolling_restart: all"),
        ("start", "3", "#5 rolling_restart"),
        ("stop", "1", "#5 rolling_restart: all"),
        ("start", "1", "#5 rolling_restart"),
    ]
    history = History()
    for f, node, details in rows:
        history.nemesis(f, node, details=details)
    bands = fault_bands(history.table())
    assert [(str(band), band.start_ns // 10**6, band.end_ns // 10**6) for band in bands] == [
        ("pause 1,3", 0, 4),
        ("kill 1,2,3", 1, 7),
        ("kill 2", 2, 5),
        ("kill 1", 6, 9),
        ("starve 2", 8, 10),
        ("stop 3", 11, 12),
        ("stop 1", 13, 14),
    ]
    bars = [(bar.fault, bar.start_s, bar.end_s, bar.steps) for bar in bars_of(bands, 1.0)]
    assert bars == [
        ("pause_kill", 0.0, 0.005, ["pause 1,3", "kill 2"]),
        ("kill_all", 0.001, 0.007, ["kill 1,2,3"]),
        ("kill", 0.006, 0.009, ["kill 1"]),
        ("starve", 0.008, 0.01, ["starve 2"]),
        ("rolling_restart", 0.011, 0.014, ["stop 3", "stop 1"]),
    ]


def test_a_bar_says_what_a_fault_asked_the_cluster_for() -> None:
    history = History()
    history.nemesis("reassign", "1", details="#1 reassign: any")
    history.nemesis("reassign", "1", details="#2 reassign: any")
    history.nemesis("asked", "1", details="#1 reassign: t-0 to (2, 3)")
    bands = fault_bands(history.table())
    assert [(str(band), band.asked) for band in bands] == [
        ("reassign 1", "t-0 to (2, 3)"),
        ("reassign 1", ""),
    ]
    first, second = bars_of(bands, 1.0)
    assert "reassign 1 (any), t-0 to (2, 3), 0.00 s" in first.tooltip
    assert "reassign 1 (any), 0.00 s" in second.tooltip


@pytest.mark.parametrize(
    ("last_words", "said"),
    [
        ("node 2 ended with status -9: no output", "killed from outside"),
        ("node 2 ended with status 137: no output", "killed from outside"),
        ("node 2 ended with status 1: No space left on device: data/log", "its disk was full"),
        ("node 2 ended with status 70: an invariant did not hold", "node 2 ended"),
    ],
)
def test_a_node_that_ended_says_whether_it_was_its_own_fault(last_words: str, said: str) -> None:
    history = History().sent(1).nemesis("node-ended", "2", details=last_words)
    verdict = history.final((0, 1), end=1).verdict()
    assert verdict.valid is False
    note = verdict.results[0].witnesses[0]["note"]
    assert note.startswith(said)
    assert note.endswith(last_words)


SENDER, ADMINISTRATOR = 0, 9
OLD, NEW = "chaos.0-0", "chaos.1-0"


class Lives:
    """Writes a history: the value of a record is its number, whatever became of the send."""

    def __init__(self, history: HistoryWriter) -> None:
        self._history = history
        self._next_value = 0

    def _both(self, process: int, f: str, told: list[Message], outcome: str = "ok") -> None:
        meant = [message._replace(offset=-1) for message in told]
        self._history.append(process, "invoke", f, [] if f == "poll" else meant)
        self._history.append(process, outcome, f, told)

    def send(self, key: str, *offsets: int, outcome: str = "ok") -> list[Message]:
        sent = []
        for offset in offsets:
            sent.append(Message(key, offset, self._next_value, checksum=7))
            self._next_value += 1
            known = sent[-1:] if outcome == "ok" else [sent[-1]._replace(offset=-1)]
            self._both(SENDER, "send", known, outcome)
        return sent

    def recreate(self) -> None:
        self._both(ADMINISTRATOR, "recreate", [Message("chaos", -1, 1)])

    def poll(self, records: list[Message], *kinds: str) -> None:
        for kind in kinds or KINDS:
            told = [record._replace(f=kind) for record in records]
            self._both(1 + KINDS.index(kind), "poll", told)


def judged(out: Path, *, skip: int = 0, readers: tuple[str, ...] = ()) -> Verdict:
    """Two lives of five records; of the second, `readers` leave out the first `skip`."""
    with HistoryWriter(out, meta={"model": WORKLOAD.model}) as history:
        lives = Lives(history)
        lives.poll(lives.send(OLD, *range(5))[:3])
        lives.recreate()
        second = lives.send(NEW, *range(5))
        for kind in KINDS:
            lives.poll(second[skip if kind in readers else 0 :], kind)
    return verify_history(out, engine="local", model=WORKLOAD.model)


def test_what_died_with_its_topic_need_not_be_read(tmp_path: Path) -> None:
    verdict = judged(tmp_path)
    assert verdict.valid is True, verdict.as_json()
    assert (verdict.figures["acknowledged"], verdict.figures["polled"]) == (10, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_a_position_that_outlives_its_topic_is_found(tmp_path: Path, kind: str) -> None:
    verdict = judged(tmp_path, skip=3, readers=(kind,))
    assert verdict.valid is False
    (found,) = verdict.results
    assert (found.name, found.count) == ("skipped-record", 3)
    assert [witness["key"] for witness in found.witnesses] == [NEW] * 3


def test_a_record_sent_again_into_the_next_life_proves_nothing(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path, meta={"model": WORKLOAD.model}) as history:
        lives = Lives(history)
        lives.send(OLD, *range(5))
        (late,) = lives.send(OLD, 9, outcome="info")
        lives.recreate()
        lives.poll([late])  # it is offset 9 of the next life
        lives.poll(lives.send(NEW, 0))
    verdict = verify_history(tmp_path, engine="local", model=WORKLOAD.model)
    assert verdict.valid is True, verdict.as_json()


def test_two_records_at_one_offset_are_in_two_topics(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path, meta={"model": WORKLOAD.model}) as history:
        lives = Lives(history)
        lives.recreate()
        lives.send(NEW, 0)  # by a leader that has not yet heard of the deletion
        lives.poll(lives.send(NEW, 0, 1))
    verdict = verify_history(tmp_path, engine="local", model=WORKLOAD.model)
    assert [result.name for result in verdict.results] == ["elsewhere"]
    assert verdict.valid is True


def test_a_record_that_was_altered_is_found(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path, meta={"model": WORKLOAD.model}) as history:
        lives = Lives(history)
        lives.recreate()
        first, second = lives.send(NEW, 0, 1)
        lives.poll([first, second._replace(checksum=0)], "alone", "classic")
        lives.poll([first, second._replace(checksum=8)], "consumer")
    verdict = verify_history(tmp_path, engine="local", model=WORKLOAD.model)
    assert [result.name for result in verdict.results] == ["altered-record"]
    assert verdict.results[0].count == 1
    assert verdict.valid is False


def test_a_topic_that_was_never_created_again_proves_nothing(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path, meta={"model": WORKLOAD.model}) as history:
        lives = Lives(history)
        lives.poll(lives.send(OLD, 0))
    assert verify_history(tmp_path, engine="local", model=WORKLOAD.model).valid == "unknown"
