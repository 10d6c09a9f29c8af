"""The check of a topic that is deleted and created again: which readers it finds."""

from pathlib import Path

import pytest

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.history import HistoryWriter, Message
from quorumlog.chaos.verify import verify_history
from quorumlog.chaos.workloads.recreated_topic import KINDS, WORKLOAD

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
            sent.append(Message(key, offset, self._next_value))
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


def test_a_topic_that_was_never_created_again_proves_nothing(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path, meta={"model": WORKLOAD.model}) as history:
        lives = Lives(history)
        lives.poll(lives.send(OLD, 0))
    assert verify_history(tmp_path, engine="local", model=WORKLOAD.model).valid == "unknown"
