"""Answers by hand: their arguments, their counts, and the complaint about one that met nothing."""

from collections.abc import Iterator
from typing import Any

import pytest

from quorumlog.chaos.control.manual_nemesis import ManualNemesis
from quorumlog.chaos.faults.links import EFFECTS, OF_REQUESTS, Answer, Link, Observe
from tests.support.testing.fake_back_end import FakeBackEnd

CLIENTS = tuple(Link("clients", node, "kafka") for node in ("1", "2", "3"))


@pytest.fixture
def back_end() -> FakeBackEnd:
    return FakeBackEnd({})


@pytest.fixture
def nemesis(back_end: FakeBackEnd) -> Iterator[ManualNemesis]:
    made = ManualNemesis(
        back_end, topics=lambda: [], topic=None, seed=1, record=lambda *_: None, outlives=False
    )
    with made:
        yield made


def counted(back_end: FakeBackEnd, place: int, matched: int, answered: int = 0) -> None:
    """Let the rule that was imposed as number `place` have met requests."""
    rule_id = back_end.imposed[place]
    back_end.counts[rule_id] = {"matched": matched, "answered": answered, "seen": []}


def test_a_rule_holds_on_the_links_of_clients(
    nemesis: ManualNemesis, back_end: FakeBackEnd
) -> None:
    rule = nemesis.answer("Produce", 6, topic="orders", partition=0, times=3, after="appended")
    [imposed] = back_end.rules.values()
    assert imposed.links == CLIENTS
    assert imposed.effect == Answer(
        "Produce", "NOT_LEADER_OR_FOLLOWER", "orders", 0, times=3, after="appended"
    )
    counted(back_end, 0, 2, 2)
    assert (rule.number, rule.matches, rule.answered) == (1, 2, 2)
    assert nemesis.complaint() is None


def test_rules_are_plain_values(nemesis: ManualNemesis, back_end: FakeBackEnd) -> None:
    nemesis.answer("Fetch", "NOT_LEADER_OR_FOLLOWER", probability=0.25)
    assert nemesis.observe("Fetch", client_id="desk").number == 2
    assert [*back_end.rules.values()][1].effect == Observe("Fetch", client_id="desk")
    counted(back_end, 0, 8, 2)
    nemesis.mend()
    assert not back_end.rules
    place: dict[str, Any] = {"topic": None, "partition": None, "in_force": False}
    limits = {"after": "refused", "times": None, "on_call": None, "probability": 0.25}
    assert nemesis.rules() == [
        {
            "rule": 1, "kind": "answer", "api": "Fetch", "error": "NOT_LEADER_OR_FOLLOWER",
            "client_id": None, "matches": 8, "answered": 2, **place, **limits,
        },
        {"rule": 2, "kind": "observe", "api": "Fetch", "client_id": "desk", "matches": 0, **place},
    ]  # fmt: skip


def test_the_rules_of_two_tests_on_one_cluster_differ(back_end: FakeBackEnd) -> None:
    for _ in range(2):
        with ManualNemesis(
            back_end, topics=lambda: [], topic=None, seed=1, record=lambda *_: None
        ) as nemesis:
            nemesis.answer("Produce", "REQUEST_TIMED_OUT")
    assert len({*back_end.imposed}) == 2


def test_a_rule_of_a_block_ends_with_it(nemesis: ManualNemesis, back_end: FakeBackEnd) -> None:
    nemesis.answer("Fetch", "NOT_LEADER_OR_FOLLOWER")
    with nemesis.answering("Produce", "REQUEST_TIMED_OUT", on_call=2) as rule:
        assert rule.number == 2
        assert len(back_end.rules) == 2
    assert len(back_end.rules) == 1
    with pytest.raises(TypeError, match="unexpected keyword argument 'tims'"):
        nemesis.answering("Produce", "REQUEST_TIMED_OUT", tims=2)  # type: ignore[call-arg]


async def test_a_coroutine_awaits_the_rule(nemesis: ManualNemesis, back_end: FakeBackEnd) -> None:
    rule = await nemesis.answer("Produce", "REQUEST_TIMED_OUT")
    assert rule.node_ids == ()
    async with nemesis.answering("Fetch", "NOT_LEADER_OR_FOLLOWER"):
        assert len(back_end.rules) == 2
    await nemesis.heal()
    assert not back_end.rules


def test_a_rule_that_matched_nothing_is_an_error(
    nemesis: ManualNemesis, back_end: FakeBackEnd
) -> None:
    with nemesis.answering("Produce", "REQUEST_TIMED_OUT", topic="order", client_id="desk"):
        back_end.counts[back_end.imposed[0]] = {
            "matched": 0,
            "answered": 0,
            "seen": [["Fetch", "till", 3], ["Produce", "desk", 20]],
        }
    assert nemesis.complaint() == (
        "rule 1 (answer Produce with REQUEST_TIMED_OUT, topic order, client desk) matched no"
        " request; requests since then: 20 Produce of client desk, 3 Fetch of client till"
    )


def test_a_counter_may_match_nothing(nemesis: ManualNemesis) -> None:
    nemesis.observe("Produce", topic="orders")
    assert nemesis.complaint() is None
    nemesis.answer("Produce", "REQUEST_TIMED_OUT", partition=3, topic="orders")
    assert nemesis.complaint() == (
        "rule 2 (answer Produce with REQUEST_TIMED_OUT, topic orders, partition 3) matched no"
        " request; no client sent any request since then"
    )


@pytest.mark.parametrize(
    ("arguments", "limits", "message"),
    [
        (("Produc", "NOT_LEADER_OR_FOLLOWER"), {}, "'Produc' - did you mean Produce.*Fetch"),
        (("Vote", "NOT_LEADER_OR_FOLLOWER"), {}, "Vote is a request of the control plane"),
        (("Produce", "NOT_LEADER"), {}, "no error is called 'NOT_LEADER' - did you mean NOT_"),
        (("Produce", "NONE"), {}, "no error is called 'NONE'"),
        (("Produce", 999), {}, "no error has the number 999"),
        (("Fetch", "NOT_LEADER_OR_FOLLOWER"), {"after": "appended"}, "Fetch writes nothing"),
        (("Produce", 7), {"after": "append"}, "did you mean appended"),
        (("Produce", 7), {"times": 0}, "times = 0: it must be at least 1"),
        (("Produce", 7), {"on_call": 0}, "on_call = 0: it must be at least 1"),
        (("Produce", 7), {"probability": 1.5}, "probability = 1.5: it must be above 0"),
        (("Produce", 7), {"times": True}, "times = True: it is a number"),
        (("Produce", 7), {"partition": True, "topic": "t"}, "partition = True: it is a number"),
        (("Produce", 7), {"times": 1, "on_call": 2}, "times and on_call: give one of"),
        (("Produce", 7), {"partition": 0}, "partition 0 without a topic"),
        (("Produce", 7), {"partition": -1, "topic": "t"}, "partition = -1"),
        (("Produce", 7), {"topic": ""}, "topic = '': leave it out"),
        (("Heartbeat", 16), {"topic": "t"}, "a Heartbeat has no error for a single topic"),
        (("CreateTopics", 7), {"topic": "t", "partition": 0}, "no error for a single partition"),
        (("Fetch", 70), {"topic": "t"}, "FETCH_SESSION_ID_NOT_FOUND is for a whole Fetch"),
    ],
)
def test_mistakes_are_refused_at_their_line(
    nemesis: ManualNemesis, arguments: tuple[str, Any], limits: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        nemesis.answer(*arguments, **limits)
    with pytest.raises(ValueError, match=message):
        nemesis.answering(*arguments, **limits)
    assert nemesis.rules() == []


def test_links_that_cannot_be_read_refuse_rules_at_the_line_of_the_call(
    nemesis: ManualNemesis, back_end: FakeBackEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_end, "effects", EFFECTS - OF_REQUESTS)  # they have TLS
    with pytest.raises(ValueError, match="answer cannot be inflicted here"):
        nemesis.answer("Produce", 6)
    with pytest.raises(ValueError, match="observe cannot be inflicted here"):
        nemesis.observe("Produce")
    with pytest.raises(ValueError, match="reply_lost cannot be inflicted here"):
        nemesis.inflict("reply_lost", "all", api="Produce")
    assert not back_end.rules
    assert nemesis.rules() == []
    assert nemesis.complaint() is None
