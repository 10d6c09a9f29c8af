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


class Case(NamedTuple):
    make: Callable[[], History]
    valid: Valid
    anomalies: tuple[str, ...]


def case(make: Callable[[], History], valid: Valid, *anomalies: str) -> Case:
    return Case(make, valid, anomalies)


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
    "a poll that never ended may have moved": case(
        lambda: whole(sends().poll((0, 1)).poll(outcome="info").poll((2, 3))), True
    ),
    "a poll that failed has not moved": case(
        lambda: whole(sends().poll((0, 1)).poll(outcome="fail").poll((2, 3))), False, "poll-skip"
    ),
    "an empty poll has not moved": case(
        lambda: whole(sends().poll((0, 1)).poll().poll((2, 3))), False, "poll-skip"
    ),
    "what a crash names means nothing": case(
        lambda: whole(sends().poll((0, 1)).op(1, "crash", [("x-0", -1, 0)]).poll((2, 3))), True
    ),
    "a poll of unknown outcome may have taken the record": case(
        lambda: sends().poll((0, 1)).poll(outcome="info").poll((2, 3)), "unknown", "unseen"
    ),
    "a final poll of unknown outcome may have taken the record": case(
        lambda: whole(
            three().final((0, 1)).poll(process=9, f="final_poll", outcome="info"), (2, 3)
        ),
        "unknown",
    ),
    # A send of unknown outcome may take effect after later ones of its process.
    "an unknown send may come late": case(
        lambda: History().send(1, outcome="info").send(2, 0).final((0, 2), (1, 1), end=2), True
    ),
    "an unknown send must not come before an earlier acknowledged one": case(
        lambda: History().send(1, 1).send(2, outcome="info").final((0, 2), (1, 1), end=2),
        False,
        "nonmonotonic-send",
    ),
    "an unknown send between does not hide two acknowledged ones": case(
        lambda: whole(
            History().send(1, 1).send(2, outcome="info").send(3, 0), (0, 3), (1, 1), (2, 2)
        ),
        False,
        "nonmonotonic-send",
    ),
    # The final reads say something about what was there when their end was asked for.
    "a record acknowledged after the end was asked for": case(
        lambda: ended(History().sent(1).final((0, 1)), 1).send(2, 1), "unknown", "unseen"
    ),
    "a record acknowledged before the end was asked for": case(
        lambda: ended(History().sent(1, 2).final((0, 1)), 1),
        *(False, "lost-write", "log-end-regression", "unseen"),
    ),
    "a record acknowledged late, below the end": case(
        lambda: ended(
            History().send(2, 1, process=5).send(1, 0, at=(0, 90_000_000)).final((1, 2)), 2
        ),
        *(False, "lost-write", "poll-skip", "unseen"),
    ),
    "a record polled after the end was reached": case(
        lambda: ended(one_unknown().final((0, 1)), 1).poll((0, 1), (1, 2)), "unknown"
    ),
    "a second reader found more": case(
        lambda: ended(one_unknown().final((0, 1)), 1).poll(
            (0, 1), (1, 2), process=8, f="final_poll"
        ),
        True,
    ),
    "an end that was asked for, but not answered": case(
        lambda: ended(History().sent(1, 2).final((0, 1)), 1, "info"), "unknown", "unseen"
    ),
    "the log end was answered before the record was acknowledged": case(
        lambda: whole(
            History()
            .sent(1)
            .op(9, "final_end", [("x-0", 1, 0)], "fail", at=(90_000_000, 190_000_000))
            .send(2, 1, at=(100_000_000, 150_000_000))
            .poll((0, 1), (1, 2)),
            *((0, 1), (1, 2)),
            end=2,
        ),
        True,
    ),
    # Who seeks forward has passed nothing.
    "a reader that sought forward": case(
        lambda: sends().op(1, "seek", [("x-0", -1, 0)]).poll((2, 3)), "unknown", "unseen"
    ),
    "a reader that sought in another key": case(
        lambda: sends().op(1, "seek", [("y-0", -1, 0)]).poll((2, 3)),
        *(False, "lost-write", "poll-skip", "unseen"),
    ),
    "a final reader that sought forward": case(
        lambda: History().sent(1, 2).op(9, "seek", [("x-0", -1, 0)]).final((1, 2)),
        *("unknown", "unseen"),
    ),
    "a reader that sought to an offset was refused it": case(
        lambda: whole(
            three()
            .op(1, "seek", [("x-0", 7, 0)])
            .op(1, "poll", outcome="fail", error="OFFSET_OUT_OF_RANGE: x-0: 7 is too high")
        ),
        True,
    ),
    "a reader stands behind the end of the log": case(
        lambda: whole(
            three().op(1, "poll", outcome="fail", error="OFFSET_OUT_OF_RANGE: x-0: 3 is too high")
        ),
        *(False, "truncated-read"),
    ),
    "a member of a group goes on at what another has committed": case(
        lambda: (
            sends()
            .op(1, "subscribe", [("x-0", -1, 0)])
            .poll((0, 1))
            .poll(outcome="info")
            .op(2, "subscribe", [("x-0", -1, 0)])
            .poll((2, 3), process=2)
        ),
        *("unknown", "unseen"),
    ),
    "an ordinary reader starts at the second record": case(
        lambda: whole(sends().poll((1, 2), (2, 3))), False, "poll-skip"
    ),
    # What is in the log, and who put it there.
    "a value resent by its client lies twice": case(
        lambda: (
            History().send(1, outcome="info").send(1, 1, process=5).final((0, 1), (1, 1), end=2)
        ),
        "unknown",
    ),
    "a value sent once lies twice": case(
        lambda: History().send(1, 1).final((0, 1), (1, 1), end=2),
        *(False, "duplicate", "int-nonmonotonic-poll"),
    ),
    "a value without an offset was seen nowhere else": case(
        lambda: one_unknown().poll((-1, 2)).final((0, 1), end=1), False, "vanished-write"
    ),
    "a value without an offset, and no final read": case(
        lambda: one_unknown().poll((-1, 2)), "unknown", "unseen"
    ),
    "an unknown send that never appears": case(lambda: one_unknown().final((0, 1), end=1), True),
    "an unknown value may be there or not": case(
        lambda: whole(
            History().send(1, 0).send(2, outcome="info").send(3, process=5, outcome="info"),
            *((0, 1), (4, 3)),
            end=5,
        ),
        True,
    ),
    "a send that never completed appears": case(
        lambda: History().send(1, 0).send(2, process=5, at=(9, None)).final((0, 1), (1, 2), end=2),
        True,
    ),
    "a send that failed appears": case(
        lambda: History().sent(1).send(2, process=5, outcome="fail").final((0, 1), (1, 2), end=2),
        *(False, "G1a"),
    ),
    "a poll of unknown outcome shows a value whose send failed": case(
        lambda: whole(three().send(7, process=5, outcome="fail").poll((3, 7), outcome="info")),
        "unknown",
    ),
    "a poll failed because what was served is corrupt": case(
        lambda: whole(
            three().op(1, "poll", outcome="fail", error="CORRUPT_MESSAGE: checksum of x-0 at 3")
        ),
        *(False, "corrupt-read"),
    ),
    "a value that nobody sent": case(
        lambda: History().sent(1).final((0, 1), (1, 99), end=2), False, "phantom"
    ),
    "offsets without records between others": case(
        lambda: History().send(1, 0).send(2, 5).poll((0, 1), (5, 2)).final((0, 1), (5, 2), end=6),
        True,
    ),
    # Equal moments are concurrent; one nanosecond is not.
    "sent at the moment of the other's acknowledgement": case(
        lambda: (
            History()
            .send(1, 1, at=(0, 10))
            .send(2, 0, process=5, at=(10, 20))
            .final((0, 2), (1, 1), end=2)
        ),
        True,
    ),
    "sent one nanosecond after it": case(
        lambda: (
            History()
            .send(1, 1, at=(0, 10))
            .send(2, 0, process=5, at=(11, 20))
            .final((0, 2), (1, 1), end=2)
        ),
        *(False, "nonlinearizable-log"),
    ),
    "read before it was sent": case(
        lambda: History().poll((0, 1)).send(1, 0).final((0, 1), end=1), False, "nonlinearizable-log"
    ),
    "a later send of a process lies below": case(
        lambda: History().send(1, 1).send(2, 0).final((0, 2), (1, 1), end=2),
        *(False, "nonmonotonic-send"),
    ),
    "a later record of one send lies below": case(
        lambda: (
            History().op(0, "send", [("x-0", 1, 1), ("x-0", 0, 2)]).final((0, 2), (1, 1), end=2)
        ),
        *(False, "int-nonmonotonic-send"),
    ),
    # Keys do not speak for each other.
    "a key that was not read to its end": case(
        lambda: History().sent(1).send(2, 0, key="x-1").final((0, 1), end=1), "unknown", "unseen"
    ),
    "the same offsets and values in two keys": case(
        lambda: (
            History()
            .sent(1)
            .send(1, 0, key="x-1")
            .final((0, 1), end=1)
            .final((0, 1), key="x-1", end=1)
        ),
        True,
    ),
    "a key to which unknown sends went was never read": case(
        lambda: whole(three().send(7, key="y-0", process=5, outcome="info")), "unknown"
    ),
    "a key to which failed sends went was never read": case(
        lambda: whole(three().send(7, key="y-0", process=5, outcome="fail")), "unknown"
    ),
    # Final readers, one beside the other.
    "a record that one final reader had is gone for the next": case(
        lambda: two_readers(RECORDS, 3, RECORDS[:2], 2),
        *(False, "vanished-write", "log-end-regression"),
    ),
    "a final reader gets less, and one after it all": case(
        lambda: two_readers(RECORDS[:2], 2, RECORDS, 3), False, "log-end-regression"
    ),
    "a final reader misses a record in the middle that another had": case(
        lambda: two_readers(((0, 1), (2, 3)), 3, RECORDS, 3),
        *(False, "vanished-write", "int-poll-skip"),
    ),
    "a second final reader starts at the second record": case(
        lambda: two_readers(RECORDS, 3, RECORDS[1:], 3), False, "vanished-write", "poll-skip"
    ),
    "a final reader claims an end and read nothing": case(
        lambda: two_readers(RECORDS, 3, (), 3), False, "vanished-write"
    ),
    "a final reader claims an end that lies beyond all that anybody saw": case(
        lambda: whole(three(), end=9), "unknown"
    ),
    "the log end goes back": case(lambda: ended(whole(three()), 1), False, "log-end-regression"),
    "the log end lies below a record that was polled before": case(
        lambda: whole(three(), end=1), False, "log-end-regression"
    ),
    "the log end goes back, and the reader reads on": case(
        lambda: whole(ended(three().final((0, 1)), 1, "fail"), (1, 2), (2, 3)),
        *(False, "log-end-regression"),
    ),
    "a final reader gets a record that came after another had finished": case(
        lambda: whole(
            one_unknown()
            .poll((0, 1), process=8, f="final_poll")
            .op(8, "final_end", [("x-0", 1, 0)]),
            *((0, 1), (1, 2)),
            end=2,
        ),
        True,
    ),
    "two final readers that both had all": case(lambda: two_readers(RECORDS, 3, RECORDS, 3), True),
    "one final reader that did not finish beside one that did": case(
        lambda: two_readers(((0, 1),), None, RECORDS, 3), True
    ),
    "final reads that reach what was seen": case(
        lambda: History().sent(1, 2).final((0, 1), (1, 2)), True
    ),
    "an unread tail": case(lambda: History().sent(1, 2).final((0, 1)), "unknown", "unseen"),
    # Nothing was done, so nothing was proved.
    "every send failed": case(
        lambda: History().send(1, outcome="fail").send(2, outcome="fail").final(end=0), "unknown"
    ),
    "no send is known to have happened": case(
        lambda: History().send(1, outcome="info").final(end=0), "unknown"
    ),
    "nothing but the ends of empty logs": case(lambda: ended(History(), 0), "unknown"),
    "every ordinary poll failed": case(
        lambda: whole(sends().poll(outcome="fail").poll(outcome="fail")), "unknown"
    ),
    "no ordinary poll is known to have happened": case(
        lambda: whole(sends().poll(outcome="info")), "unknown"
    ),
    "every ordinary poll returned nothing": case(lambda: whole(sends().poll().poll()), "unknown"),
    "every ordinary reader had stopped before most was acknowledged": case(
        lambda: whole(History().send(1, 0).poll((0, 1)).send(2, 1).send(3, 2)), "unknown"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_border(name: str) -> None:
    make, valid, anomalies = CASES[name]
    verdict = make().verdict()
    assert (verdict.valid, found(verdict)) == (valid, [*anomalies]), verdict.as_json()
    assert (verdict.valid == "unknown") <= bool(verdict.unknown_because)
