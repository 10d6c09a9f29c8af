"""The smallest true violation beside the nearest history that is legal, or cannot be decided."""

from collections.abc import Callable

import pytest

from quorumlog.chaos.checkers import Valid
from tests.support.chaos.hand_made_histories import History, found

Case = Callable[[], History]


def readers() -> History:
    return History().sent(1, 2, 3)


def whole(history: History) -> History:
    return history.final((0, 1), (1, 2), (2, 3), end=3)


def ended(history: History, offset: int) -> History:
    return history.op(9, "final_end", [("x-0", offset, 0)])


CASES: dict[str, tuple[Case, Valid, list[str]]] = {
    # A poll of unknown outcome may have taken records with it.
    "a poll that never ended may have moved": (
        lambda: whole(readers().poll((0, 1)).poll(outcome="info").poll((2, 3))),
        True,
        [],
    ),
    "a poll that failed has not moved": (
        lambda: whole(readers().poll((0, 1)).poll(outcome="fail").poll((2, 3))),
        False,
        ["poll-skip"],
    ),
    "an empty poll has not moved": (
        lambda: whole(readers().poll((0, 1)).poll().poll((2, 3))),
        False,
        ["poll-skip"],
    ),
    "what a crash names means nothing": (
        lambda: whole(readers().poll((0, 1)).op(1, "crash", [("x-0", -1, 0)]).poll((2, 3))),
        True,
        [],
    ),
    # A send of unknown outcome may take effect after later ones of its process.
    "an unknown send may come late": (
        lambda: History().send(1, outcome="info").send(2, 0).final((0, 2), (1, 1), end=2),
        True,
        [],
    ),
    "an unknown send must not come before an earlier acknowledged one": (
        lambda: History().send(1, 1).send(2, outcome="info").final((0, 2), (1, 1), end=2),
        False,
        ["nonmonotonic-send"],
    ),
    "an unknown send between does not hide two acknowledged ones": (
        lambda: (
            History()
            .send(1, 1)
            .send(2, outcome="info")
            .send(3, 0)
            .final((0, 3), (1, 1), (2, 2), end=3)
        ),
        False,
        ["nonmonotonic-send"],
    ),
    # The final reads say something about what was there when their end was asked for.
    "a record acknowledged after the end was asked for": (
        lambda: ended(History().sent(1).final((0, 1)), 1).send(2, 1),
        "unknown",
        ["unseen"],
    ),
    "a record acknowledged before the end was asked for": (
        lambda: ended(History().sent(1, 2).final((0, 1)), 1),
        False,
        ["lost-write", "log-end-regression", "unseen"],
    ),
    "a record acknowledged late, below the end": (
        lambda: ended(
            History().send(2, 1, process=5).send(1, 0, at=(0, 90_000_000)).final((1, 2)), 2
        ),
        False,
        ["lost-write", "poll-skip", "unseen"],
    ),
    "a record polled after the end was reached": (
        lambda: ended(History().sent(1).send(2, process=5, outcome="info").final((0, 1)), 1).poll(
            (0, 1), (1, 2)
        ),
        "unknown",
        [],
    ),
    "a second reader found more": (
        lambda: ended(History().sent(1).send(2, process=5, outcome="info").final((0, 1)), 1).poll(
            (0, 1), (1, 2), process=8, f="final_poll"
        ),
        True,
        [],
    ),
    "an end that was asked for, but not answered": (
        lambda: History().sent(1, 2).final((0, 1)).op(9, "final_end", [("x-0", 1, 0)], "info"),
        "unknown",
        ["unseen"],
    ),
    # Who seeks forward has passed nothing.
    "a reader that sought forward": (
        lambda: readers().op(1, "seek", [("x-0", -1, 0)]).poll((2, 3)),
        "unknown",
        ["unseen"],
    ),
    "a reader that sought in another key": (
        lambda: readers().op(1, "seek", [("y-0", -1, 0)]).poll((2, 3)),
        False,
        ["lost-write", "poll-skip", "unseen"],
    ),
    "a final reader that sought forward": (
        lambda: History().sent(1, 2).op(9, "seek", [("x-0", -1, 0)]).final((1, 2)),
        "unknown",
        ["unseen"],
    ),
    # What is in the log, and who put it there.
    "a value resent by its client lies twice": (
        lambda: (
            History().send(1, outcome="info").send(1, 1, process=5).final((0, 1), (1, 1), end=2)
        ),
        "unknown",
        [],
    ),
    "a value sent once lies twice": (
        lambda: History().send(1, 1).final((0, 1), (1, 1), end=2),
        False,
        ["duplicate", "int-nonmonotonic-poll"],
    ),
    "a value without an offset was seen nowhere else": (
        lambda: (
            History().sent(1).send(2, process=5, outcome="info").poll((-1, 2)).final((0, 1), end=1)
        ),
        False,
        ["vanished-write"],
    ),
    "a value without an offset, and no final read": (
        lambda: History().sent(1).send(2, process=5, outcome="info").poll((-1, 2)),
        "unknown",
        ["unseen"],
    ),
    "an unknown send that never appears": (
        lambda: History().sent(1).send(2, process=5, outcome="info").final((0, 1), end=1),
        True,
        [],
    ),
    "a send that never completed appears": (
        lambda: History().send(1, 0).send(2, process=5, at=(9, None)).final((0, 1), (1, 2), end=2),
        True,
        [],
    ),
    "a send that failed appears": (
        lambda: History().sent(1).send(2, process=5, outcome="fail").final((0, 1), (1, 2), end=2),
        False,
        ["G1a"],
    ),
    # Equal moments are concurrent; one nanosecond is not.
    "sent at the moment of the other's acknowledgement": (
        lambda: (
            History()
            .send(1, 1, at=(0, 10))
            .send(2, 0, process=5, at=(10, 20))
            .final((0, 2), (1, 1), end=2)
        ),
        True,
        [],
    ),
    "sent one nanosecond after it": (
        lambda: (
            History()
            .send(1, 1, at=(0, 10))
            .send(2, 0, process=5, at=(11, 20))
            .final((0, 2), (1, 1), end=2)
        ),
        False,
        ["nonlinearizable-log"],
    ),
    # Keys do not speak for each other.
    "a key that was not read to its end": (
        lambda: History().sent(1).send(2, 0, key="x-1").final((0, 1), end=1),
        "unknown",
        ["unseen"],
    ),
    "the same offsets and values in two keys": (
        lambda: (
            History()
            .sent(1)
            .send(1, 0, key="x-1")
            .final((0, 1), end=1)
            .final((0, 1), key="x-1", end=1)
        ),
        True,
        [],
    ),
    # Nothing was done, so nothing was proved.
    "every send failed": (
        lambda: History().send(1, outcome="fail").send(2, outcome="fail").final(end=0),
        "unknown",
        [],
    ),
    "nothing but the ends of empty logs": (
        lambda: ended(History(), 0),
        "unknown",
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_border(name: str) -> None:
    make, valid, anomalies = CASES[name]
    verdict = make().verdict()
    assert (verdict.valid, found(verdict)) == (valid, anomalies), verdict.as_json()
    assert (verdict.valid == "unknown") <= bool(verdict.unknown_because)
