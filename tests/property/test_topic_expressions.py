"""Topics come and go while names are tried elsewhere; results come late. Planted bugs are found.

What must hold: an expression that is told to be known has the topics there are now that match, and
no other; and it is known once all jobs have run.
"""

from collections.abc import Callable, Set

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from quorumlog.broker.groups.core.consumer import topics as topics_module
from quorumlog.broker.groups.core.consumer.topics import (
    KnownExpression,
    MatchJob,
    TopicDescription,
    Topics,
)
from quorumlog.wire.codec.identifiers import TopicId
from tests.support.groups.consumer.coordination import PythonMatcher
from tests.support.sizes import examples

NAMES = [f"{letter}{number}" for letter in "ab" for number in range(4)]
EXPRESSIONS = ["a.*", "b[02]", ".*1"]
UNTIL_FOUND = settings(
    max_examples=2000, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
)
Patch = Callable[[pytest.MonkeyPatch], None]


class TriedElsewhere(RuleBasedStateMachine):
    """Each name is tried by a job: the limits are 0 names at once, and 2 at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.topics = Topics(PythonMatcher())
        self.jobs: list[MatchJob] = []
        self.version = 0

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1))
    def topics_come_or_go(self, names: set[str]) -> None:
        self.version += 1
        topic_id = TopicId(self.version.to_bytes(16, "big"))
        self.topics.change(
            self.version,
            {
                name: None if name in self.topics.by_name else TopicDescription(topic_id, 1)
                for name in sorted(names)
            },
        )

    @rule(expression=st.sampled_from(EXPRESSIONS))
    def a_group_asks(self, expression: str) -> None:
        self.topics.matching(expression)

    @rule()
    def jobs_begin(self) -> None:
        self.jobs += self.topics.take_jobs()

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def a_job_ends(self, data: st.DataObject) -> None:
        job = self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))
        self.topics.note_matched(job, job.run())

    @rule()
    def all_jobs_end(self) -> None:
        while self.jobs or (new := self.topics.take_jobs()):
            self.jobs += [] if self.jobs else new
            job = self.jobs.pop()
            self.topics.note_matched(job, job.run())
        for expression in EXPRESSIONS:
            if self.topics.is_known(expression):
                assert self.topics.matching(expression) is not None

    @invariant()
    def what_is_known_is_right(self) -> None:
        for expression in EXPRESSIONS:
            known = self.topics._expressions.get(expression)
            if known is not None and not known.is_behind:
                assert known.matching == {*filter(known.is_match, self.topics.by_name)}


@pytest.fixture(autouse=True)
def every_name_is_tried_by_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "AT_ONCE_MAX", 0)
    monkeypatch.setattr(topics_module, "AT_A_TIME_MAX", 2)


def test_what_is_known_is_right_whenever_results_come() -> None:
    run_machine(TriedElsewhere, settings=examples(200))


def _a_late_result_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    def note(self: Topics, job: MatchJob, matching: Set[str]) -> None:
        known = self._expressions[job.expression]
        known.job = None
        known.matching |= matching

    monkeypatch.setattr(Topics, "note_matched", note)


def _a_result_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Topics.note_matched

    def note(self: Topics, job: MatchJob, matching: Set[str]) -> None:
        noted(self, job, matching)
        self._expressions[job.expression].untried.clear()

    monkeypatch.setattr(Topics, "note_matched", note)


def _what_is_under_way_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnownExpression, "is_behind", property(lambda self: bool(self.untried)))


def _new_topics_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Topics._try

    def try_(self: Topics, known: KnownExpression, names: list[str], *, at_once: bool) -> None:
        tried(self, known, [] if known.is_behind else names, at_once=at_once)

    monkeypatch.setattr(Topics, "_try", try_)


MUTANTS: dict[str, Patch] = {
    "a late result of older metadata wins": _a_late_result_wins,
    "a result is taken for all there is": _a_result_is_all_there_is,
    "what is under way counts as done": _what_is_under_way_is_done,
    "topics that come meanwhile are not tried": _new_topics_are_not_tried,
}


@pytest.mark.planted
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        run_machine(TriedElsewhere, settings=UNTIL_FOUND)
