"""The checker of a mirror: which histories it must refuse, and which prove nothing."""

import pytest

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.checkers.checker import Facts
from quorumlog.chaos.checkers.registry import judges_of
from quorumlog.chaos.history import Message
from quorumlog.chaos.history.model import COPIED_ONCE
from tests.support.chaos.hand_made_histories import STEP_NS, History, found

KEY = "x-0"
RECORDS = 10
MIRROR, GROUP, OBSERVER = 20, 21, 22


class Mirrored(History):
    """Ten sends; then the group commits 5, and its offset at the target is 5.

    `copies`: the values of the copy, at offsets from 0.
    """

    def __init__(self, *copies: int, exactly_once: bool = True) -> None:
        super().__init__()
        for value in range(RECORDS):
            self.send(value, value)
        self.commit(5).translated(5)
        self._copies = copies or tuple(range(RECORDS))
        self._kind = COPIED_ONCE if exactly_once else "copy"

    def _of(self, process: int, f: str, *micros: Message, outcome: str = "ok") -> "Mirrored":
        self.op(process, f, outcome=outcome)
        self.ops[-1].micros = [*micros]
        return self

    def commit(self, offset: int, outcome: str = "ok") -> "Mirrored":
        return self._of(GROUP, "commit", Message(KEY, offset, 0, f="commit"), outcome=outcome)

    def translated(self, offset: int) -> "Mirrored":
        return self._of(OBSERVER, "translated", Message(KEY, offset, 0, f="translated"))

    def unsure(self, value: int, outcome: str = "info") -> "Mirrored":
        """Send a record without an acknowledgement."""
        self.send(value, outcome=outcome)
        return self

    def during_the_last(self) -> "Mirrored":
        """Let the last operation lie in the operation before it."""
        before, op = self.ops[-2:]
        op.start_ns, op.end_ns = before.start_ns + STEP_NS // 4, before.start_ns + STEP_NS // 2
        return self

    def copied(self, *values: int) -> "Mirrored":
        self._copies = values
        return self

    def judged(self, *others: tuple[int, int]) -> Verdict:
        """Judge it with the final reads; `others`: records of the source at further offsets."""
        log = [(value, value) for value in range(RECORDS)]
        self.final(*log, *others, end=RECORDS + len(others))
        copies = [
            Message(KEY, offset, value, f=self._kind) for offset, value in enumerate(self._copies)
        ]
        self._of(MIRROR, "copy", *copies)
        assert [one.model for one in judges_of("mirror", Facts())] == ["mirror", "kafka_log"]
        return check_history(self.table(dense=True), "mirror")


ALL = range(RECORDS)
VALID = {
    "copied": Mirrored(),
    "copied in the middle of a commit": Mirrored().commit(7).translated(7).during_the_last(),
    "behind the group": Mirrored().commit(9).translated(6),
    "a commit of unknown outcome": Mirrored().commit(8, "info").translated(8),
    "all is committed": Mirrored().commit(10).translated(10),
    "copied again behind the translation": (
        Mirrored(*ALL, 4, 5, 6, 7, 8, 9, exactly_once=False).translated(11)
    ),
    "a record of unknown outcome": Mirrored(*ALL, 77).unsure(77),
}
INVALID = {
    "lost-copy": Mirrored(0, 1, 2, 3, 4, 5, 6, 8, 9),
    "reordered-copy": Mirrored(0, 1, 2, 4, 3, 5, 6, 7, 8, 9),
    "copied-twice": Mirrored(*range(8), 6, 7, 8, 9),
    "phantom-copy": Mirrored(*ALL, 77),
    "translated-ahead": Mirrored().translated(6),
}


@pytest.mark.parametrize("name", VALID)
def test_a_mirror_that_keeps_the_rules_is_valid(name: str) -> None:
    verdict = VALID[name].judged()
    others = [one for one in found(verdict) if one != "copied-again"]
    assert (verdict.valid, others) == (True, []), verdict.as_json()


@pytest.mark.parametrize("name", INVALID)
def test_each_anomaly_has_a_witness(name: str) -> None:
    verdict = INVALID[name].judged()
    assert (verdict.valid, found(verdict)) == (False, [name]), verdict.as_json()
    [result] = verdict.results
    assert result.witnesses[0]["ops"]
    assert name in verdict.meanings


def test_a_second_copy_is_legal_at_least_once_and_counted() -> None:
    verdict = Mirrored(0, 1, 2, 3, 2, 3, *range(4, 10), exactly_once=False).judged()
    assert (verdict.valid, found(verdict)) == (True, ["copied-again"])
    assert (verdict.figures["copied"], verdict.figures["copied_again"]) == (10, 2)


def test_a_group_must_find_every_record_that_it_had_not_committed_once_at_least() -> None:
    again = Mirrored(*ALL, 5, 6, 7, 8, 9, exactly_once=False).translated(10)
    assert found(again.judged()) == ["copied-again"]
    later = Mirrored(*ALL, 5, 6, 7, 8, 9, exactly_once=False).translated(11)
    assert "translated-ahead" in found(later.judged())


def test_a_copy_of_a_record_that_was_never_sent_again_is_found() -> None:
    history = Mirrored(*ALL, 77).unsure(77, "fail")
    assert found(history.judged()) == ["phantom-copy"]


def test_a_record_that_readers_saw_needs_a_copy_although_its_send_is_unknown() -> None:
    history = Mirrored(*ALL, 11).unsure(77)
    history.send(11, 11)
    assert found(history.judged((10, 77), (11, 11))) == ["lost-copy"]


def test_an_altered_copy_is_found() -> None:
    history = Mirrored()
    history.ops[3].micros = [Message(KEY, 3, 3, f="send", checksum=7)]
    verdict = history.judged()
    assert "altered-copy" in found(verdict)


def test_copies_that_end_too_early_prove_nothing() -> None:
    verdict = Mirrored(*range(8)).judged()
    assert verdict.valid == "unknown"
    [reason] = verdict.unknown_because
    assert "not read up to the last acknowledged record" in reason
