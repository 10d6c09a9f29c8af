"""The smallest true violation beside the nearest history that is legal, or cannot be decided.

Among them are bad histories that look good to a careless checker, and legal ones that look bad.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from quorumlog.chaos.checkers import Valid
from tests.support.chaos.hand_made_histories import History, found

RECORDS = (0, 1), (1, 2), (2, 3)
Pairs = tuple[tuple[int, int], ...]


Expected = tuple[Valid, list[str]]  # with the anomalies
GOOD: Expected = (True, [])


def bad(*anomalies: str) -> Expected:
    return False, [*anomalies]


def unknown(*anomalies: str) -> Expected:
    return "unknown", [*anomalies]


class Case(NamedTuple):
    make: Callable[[], History]
    expected: Expected


def sends() -> History:
    """Three acknowledged records."""
    return History().sent(1, 2, 3)


def three() -> History:
    """Three acknowledged records that an ordinary reader has polled."""
    return sends().poll(*RECORDS)


def whole(history: History, *pairs: tuple[int, int], end: int | None = 3) -> History:
    """Read all three records at last, or these; `end`: the log end that the reader has reached."""
    return history.final(*pairs or RECORDS, end=end)


def ended(history: History, offset: int, outcome: str = "ok") -> History:
    return history.op(9, "final_end", [("x-0", offset, 0)], outcome)


def two_readers(first: Pairs, first_end: int | None, second: Pairs, second_end: int) -> History:
    """Let two final readers read, one after the other."""
    history = three()
    for process, pairs, end in ((8, first, first_end), (9, second, second_end)):
        if pairs:
            history.poll(*pairs, process=process, f="final_poll")
        if end is not None:
            history.op(process, "final_end", [("x-0", end, 0)])
    return history


def one_unknown() -> History:
    """One acknowledged record, and one send of another process whose outcome is unknown."""
    return History().sent(1).send(2, process=5, outcome="info")


CASES: dict[str, Case] = {
    # A poll of unknown outcome may have taken records with it.
    "a poll that never ended may have moved": Case(
        lambda: whole(sends().poll((0, 1)).poll(outcome="info").poll((2, 3))), GOOD
    ),
    "a poll that failed has not moved": Case(
        lambda: whole(sends().poll((0, 1)).poll(outcome="fail").poll((2, 3))), bad("poll-skip")
    ),
    "an empty poll has not moved": Case(
        lambda: whole(sends().poll((0, 1)).poll().poll((2, 3))), bad("poll-skip")
    ),
    "what a crash names means nothing": Case(
        lambda: whole(sends().poll((0, 1)).op(1, "crash", [("x-0", -1, 0)]).poll((2, 3))), GOOD
    ),
    "a poll of unknown outcome may have taken the record": Case(
        lambda: sends().poll((0, 1)).poll(outcome="info").poll((2, 3)), unknown("unseen")
    ),
    "a final poll of unknown outcome may have taken the record": Case(
        lambda: whole(
            three().final((0, 1)).poll(process=9, f="final_poll", outcome="info"), (2, 3)
        ),
        unknown(),
    ),
    # A send of unknown outcome may take effect after later ones of its process.
    "an unknown send may come late": Case(
        lambda: History().send(1, outcome="info").send(2, 0).final((0, 2), (1, 1), end=2), GOOD
    ),
    "an unknown send must not come before an earlier acknowledged one": Case(
        lambda: History().send(1, 1).send(2, outcome="info").final((0, 2), (1, 1), end=2),
        bad("nonmonotonic-send"),
    ),
    "an unknown send between does not hide two acknowledged ones": Case(
        lambda: whole(
            History().send(1, 1).send(2, outcome="info").send(3, 0), (0, 3), (1, 1), (2, 2)
        ),
        bad("nonmonotonic-send"),
    ),
    # The final reads say something about what was there when their end was asked for.
    "a record acknowledged after the end was asked for": Case(
        lambda: ended(History().sent(1).final((0, 1)), 1).send(2, 1), unknown("unseen")
    ),
    "a record acknowledged before the end was asked for": Case(
        lambda: ended(History().sent(1, 2).final((0, 1)), 1),
        bad("lost-write", "log-end-regression", "unseen"),
    ),
    "a record acknowledged late, below the end": Case(
        lambda: ended(
            History().send(2, 1, process=5).send(1, 0, at=(0, 90_000_000)).final((1, 2)), 2
        ),
        bad("lost-write", "poll-skip", "unseen"),
    ),
    "a record polled after the end was reached": Case(
        lambda: ended(one_unknown().final((0, 1)), 1).poll((0, 1), (1, 2)), unknown()
    ),
    "a second reader found more": Case(
        lambda: ended(one_unknown().final((0, 1)), 1).poll(
            (0, 1), (1, 2), process=8, f="final_poll"
        ),
        GOOD,
    ),
    "an end that was asked for, but not answered": Case(
        lambda: ended(History().sent(1, 2).final((0, 1)), 1, "info"), unknown("unseen")
    ),
    "the log end was answered before the record was acknowledged": Case(
        lambda: whole(
            History()
            .sent(1)
            .op(9, "final_end", [("x-0", 1, 0)], "fail", at=(90_000_000, 190_000_000))
            .send(2, 1, at=(100_000_000, 150_000_000))
            .poll((0, 1), (1, 2)),
            *RECORDS[:2],
            end=2,
        ),
        GOOD,
    ),
    # Who seeks forward has passed nothing.
    "a reader that sought forward": Case(
        lambda: sends().op(1, "seek", [("x-0", -1, 0)]).poll((2, 3)), unknown("unseen")
    ),
    "a reader that sought in another key": Case(
        lambda: sends().op(1, "seek", [("y-0", -1, 0)]).poll((2, 3)),
        bad("lost-write", "poll-skip", "unseen"),
    ),
    "a final reader that sought forward": Case(
        lambda: History().sent(1, 2).op(9, "seek", [("x-0", -1, 0)]).final((1, 2)),
        unknown("unseen"),
    ),
    "a reader that sought to an offset was refused it": Case(
        lambda: whole(
            three()
            .op(1, "seek", [("x-0", 7, 0)])
            .op(1, "poll", outcome="fail", error="OFFSET_OUT_OF_RANGE: x-0: 7 is too high")
        ),
        GOOD,
    ),
    "a reader stands behind the end of the log": Case(
        lambda: whole(
            three().op(1, "poll", outcome="fail", error="OFFSET_OUT_OF_RANGE: x-0: 3 is too high")
        ),
        bad("truncated-read"),
    ),
    "a member of a group goes on at what another has committed": Case(
        lambda: (
            sends()
            .op(1, "subscribe", [("x-0", -1, 0)])
            .poll((0, 1))
            .poll(outcome="info")
            .op(2, "subscribe", [("x-0", -1, 0)])
            .poll((2, 3), process=2)
        ),
        unknown("unseen"),
    ),
    "an ordinary reader starts at the second record": Case(
        lambda: whole(sends().poll((1, 2), (2, 3))), bad("poll-skip")
    ),
    # What is in the log, and who put it there.
    "a value resent by its client lies twice": Case(
        lambda: (
            History().send(1, outcome="info").send(1, 1, process=5).final((0, 1), (1, 1), end=2)
        ),
        unknown(),
    ),
    "a value sent once lies twice": Case(
        lambda: History().send(1, 1).final((0, 1), (1, 1), end=2),
        bad("duplicate", "int-nonmonotonic-poll"),
    ),
    "a value without an offset was seen nowhere else": Case(
        lambda: one_unknown().poll((-1, 2)).final((0, 1), end=1), bad("vanished-write")
    ),
    "a value without an offset, and no final read": Case(
        lambda: one_unknown().poll((-1, 2)), unknown("unseen")
    ),
    "an unknown send that never appears": Case(lambda: one_unknown().final((0, 1), end=1), GOOD),
    "an unknown value may be there or not": Case(
        lambda: whole(
            History().send(1, 0).send(2, outcome="info").send(3, process=5, outcome="info"),
            *((0, 1), (4, 3)),
            end=5,
        ),
        GOOD,
    ),
    "a send that never completed appears": Case(
        lambda: History().send(1, 0).send(2, process=5, at=(9, None)).final((0, 1), (1, 2), end=2),
        GOOD,
    ),
    "a send that failed appears": Case(
        lambda: History().sent(1).send(2, process=5, outcome="fail").final((0, 1), (1, 2), end=2),
        bad("G1a"),
    ),
    "a poll of unknown outcome shows a value whose send failed": Case(
        lambda: whole(three().send(7, process=5, outcome="fail").poll((3, 7), outcome="info")),
        unknown(),
    ),
    "a poll failed because what was served is corrupt": Case(
        lambda: whole(
            three().op(1, "poll", outcome="fail", error="CORRUPT_MESSAGE: checksum of x-0 at 3")
        ),
        bad("corrupt-read"),
    ),
    "a value that nobody sent": Case(
        lambda: History().sent(1).final((0, 1), (1, 99), end=2), bad("phantom")
    ),
    "offsets without records between others": Case(
        lambda: History().send(1, 0).send(2, 5).poll((0, 1), (5, 2)).final((0, 1), (5, 2), end=6),
        GOOD,
    ),
    # Equal moments are concurrent; one nanosecond is not.
    "sent at the moment of the other's acknowledgement": Case(
        lambda: (
            History()
            .send(1, 1, at=(0, 10))
            .send(2, 0, process=5, at=(10, 20))
            .final((0, 2), (1, 1), end=2)
        ),
        GOOD,
    ),
    "sent one nanosecond after it": Case(
        lambda: (
            History()
            .send(1, 1, at=(0, 10))
            .send(2, 0, process=5, at=(11, 20))
            .final((0, 2), (1, 1), end=2)
        ),
        bad("nonlinearizable-log"),
    ),
    "read before it was sent": Case(
        lambda: History().poll((0, 1)).send(1, 0).final((0, 1), end=1), bad("nonlinearizable-log")
    ),
    "a later send of a process lies below": Case(
        lambda: History().send(1, 1).send(2, 0).final((0, 2), (1, 1), end=2),
        bad("nonmonotonic-send"),
    ),
    "a later record of one send lies below": Case(
        lambda: (
            History().op(0, "send", [("x-0", 1, 1), ("x-0", 0, 2)]).final((0, 2), (1, 1), end=2)
        ),
        bad("int-nonmonotonic-send"),
    ),
    # Keys do not speak for each other.
    "a key that was not read to its end": Case(
        lambda: History().sent(1).send(2, 0, key="x-1").final((0, 1), end=1), unknown("unseen")
    ),
    "the same offsets and values in two keys": Case(
        lambda: (
            History()
            .sent(1)
            .send(1, 0, key="x-1")
            .final((0, 1), end=1)
            .final((0, 1), key="x-1", end=1)
        ),
        GOOD,
    ),
    "a key to which unknown sends went was never read": Case(
        lambda: whole(three().send(7, key="y-0", process=5, outcome="info")), unknown()
    ),
    "a key to which failed sends went was never read": Case(
        lambda: whole(three().send(7, key="y-0", process=5, outcome="fail")), unknown()
    ),
    # Final readers, one beside the other.
    "a record that one final reader had is gone for the next": Case(
        lambda: two_readers(RECORDS, 3, RECORDS[:2], 2), bad("vanished-write", "log-end-regression")
    ),
    "a final reader gets less, and one after it all": Case(
        lambda: two_readers(RECORDS[:2], 2, RECORDS, 3), bad("log-end-regression")
    ),
    "a final reader misses a record in the middle that another had": Case(
        lambda: two_readers(((0, 1), (2, 3)), 3, RECORDS, 3), bad("vanished-write", "int-poll-skip")
    ),
    "a second final reader starts at the second record": Case(
        lambda: two_readers(RECORDS, 3, RECORDS[1:], 3), bad("vanished-write", "poll-skip")
    ),
    "a final reader claims an end and read nothing": Case(
        lambda: two_readers(RECORDS, 3, (), 3), bad("vanished-write")
    ),
    "a final reader claims an end that lies beyond all that anybody saw": Case(
        lambda: whole(three(), end=9), unknown()
    ),
    "the log end goes back": Case(lambda: ended(whole(three()), 1), bad("log-end-regression")),
    "the log end lies below a record that was polled before": Case(
        lambda: whole(three(), end=1), bad("log-end-regression")
    ),
    "the log end goes back, and the reader reads on": Case(
        lambda: whole(ended(three().final((0, 1)), 1, "fail"), (1, 2), (2, 3)),
        bad("log-end-regression"),
    ),
    "a final reader gets a record that came after another had finished": Case(
        lambda: whole(
            one_unknown()
            .poll((0, 1), process=8, f="final_poll")
            .op(8, "final_end", [("x-0", 1, 0)]),
            *RECORDS[:2],
            end=2,
        ),
        GOOD,
    ),
    "two final readers that both had all": Case(lambda: two_readers(RECORDS, 3, RECORDS, 3), GOOD),
    "one final reader that did not finish beside one that did": Case(
        lambda: two_readers(((0, 1),), None, RECORDS, 3), GOOD
    ),
    "final reads that reach what was seen": Case(
        lambda: History().sent(1, 2).final((0, 1), (1, 2)), GOOD
    ),
    "an unread tail": Case(lambda: History().sent(1, 2).final((0, 1)), unknown("unseen")),
    # Nothing was done, so nothing was proved.
    "every send failed": Case(
        lambda: History().send(1, outcome="fail").send(2, outcome="fail").final(end=0), unknown()
    ),
    "no send is known to have happened": Case(
        lambda: History().send(1, outcome="info").final(end=0), unknown()
    ),
    "nothing but the ends of empty logs": Case(lambda: ended(History(), 0), unknown()),
    "every ordinary poll failed": Case(
        lambda: whole(sends().poll(outcome="fail").poll(outcome="fail")), unknown()
    ),
    "no ordinary poll is known to have happened": Case(
        lambda: whole(sends().poll(outcome="info")), unknown()
    ),
    "every ordinary poll returned nothing": Case(lambda: whole(sends().poll().poll()), unknown()),
    "every ordinary reader had stopped before most was acknowledged": Case(
        lambda: whole(History().send(1, 0).poll((0, 1)).send(2, 1).send(3, 2)), unknown()
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_border(name: str) -> None:
    make, expected = CASES[name]
    verdict = make().verdict()
    assert (verdict.valid, found(verdict)) == expected, verdict.as_json()
    assert (verdict.valid == "unknown") <= bool(verdict.unknown_because)
