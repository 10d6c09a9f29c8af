"""Bad histories that look good to a careless checker, and legal ones that look bad.

Each is the smallest of its kind. The first list must not be valid; the second must not be invalid.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from quorumlog.chaos.checkers import Valid
from quorumlog.chaos.history import HistoryError, HistoryWriter, read_history
from quorumlog.chaos.verify import verify_history
from tests.support.chaos.hand_made_histories import History, found, rows_of

Case = Callable[[], History]


def three() -> History:
    """Three acknowledged records that an ordinary reader has polled."""
    return History().sent(1, 2, 3).poll((0, 1), (1, 2), (2, 3))


def read_finally(
    history: History, *pairs: tuple[int, int], end: int | None, process: int, key: str = "x-0"
) -> History:
    """Read as one more final reader; `end`: the log end offset that it claims to have reached."""
    if pairs:
        history.poll(*pairs, process=process, key=key, f="final_poll")
    if end is not None:
        history.op(process, "final_end", [(key, end, 0)])
    return history


def with_two_final_readers(
    first: tuple[tuple[tuple[int, int], ...], int], second: tuple[tuple[tuple[int, int], ...], int]
) -> History:
    history = three()
    for process, (pairs, end) in enumerate((first, second), start=8):
        read_finally(history, *pairs, end=end, process=process)
    return history


WHOLE = (((0, 1), (1, 2), (2, 3)), 3)

BAD: dict[str, tuple[Case, Valid, list[str]]] = {
    "a record that one final reader had is gone for the next": (
        lambda: with_two_final_readers(WHOLE, (((0, 1), (1, 2)), 2)),
        False,
        ["vanished-write", "log-end-regression"],
    ),
    "a final reader gets less, and one after it all": (
        lambda: with_two_final_readers((((0, 1), (1, 2)), 2), WHOLE),
        False,
        ["log-end-regression"],
    ),
    "a final reader misses a record in the middle that another had": (
        lambda: with_two_final_readers((((0, 1), (2, 3)), 3), WHOLE),
        False,
        ["vanished-write", "int-poll-skip"],
    ),
    "a second final reader starts at the second record": (
        lambda: with_two_final_readers(WHOLE, (((1, 2), (2, 3)), 3)),
        False,
        ["vanished-write", "poll-skip"],
    ),
    "an ordinary reader starts at the second record": (
        lambda: read_finally(
            History().sent(1, 2, 3).poll((1, 2), (2, 3)), *WHOLE[0], end=3, process=9
        ),
        False,
        ["poll-skip"],
    ),
    "a final reader claims an end and read nothing": (
        lambda: with_two_final_readers(WHOLE, ((), 3)),
        False,
        ["vanished-write"],
    ),
    "a final reader claims an end that lies beyond all that anybody saw": (
        lambda: read_finally(three(), *WHOLE[0], end=9, process=9),
        "unknown",
        [],
    ),
    "the log end goes back": (
        lambda: read_finally(read_finally(three(), *WHOLE[0], end=3, process=9), end=1, process=9),
        False,
        ["log-end-regression"],
    ),
    "the log end lies below a record that was polled before": (
        lambda: read_finally(three(), *WHOLE[0], end=1, process=9),
        False,
        ["log-end-regression"],
    ),
    "the log end goes back, and the reader reads on": (
        lambda: read_finally(
            three()
            .poll((0, 1), process=9, f="final_poll")
            .op(9, "final_end", [("x-0", 1, 0)], "fail"),
            (1, 2),
            (2, 3),
            end=3,
            process=9,
        ),
        False,
        ["log-end-regression"],
    ),
    "a key to which unknown sends went was never read": (
        lambda: read_finally(
            three().send(7, key="y-0", process=5, outcome="info"), *WHOLE[0], end=3, process=9
        ),
        "unknown",
        [],
    ),
    "a key to which failed sends went was never read": (
        lambda: read_finally(
            three().send(7, key="y-0", process=5, outcome="fail"), *WHOLE[0], end=3, process=9
        ),
        "unknown",
        [],
    ),
    "a poll of unknown outcome shows a value whose send failed": (
        lambda: read_finally(
            three().send(7, process=5, outcome="fail").poll((3, 7), outcome="info"),
            *WHOLE[0],
            end=3,
            process=9,
        ),
        "unknown",
        [],
    ),
    "every ordinary poll failed": (
        lambda: read_finally(
            History().sent(1, 2, 3).poll(outcome="fail").poll(outcome="fail"),
            *WHOLE[0],
            end=3,
            process=9,
        ),
        "unknown",
        [],
    ),
    "no ordinary poll is known to have happened": (
        lambda: read_finally(
            History().sent(1, 2, 3).poll(outcome="info"), *WHOLE[0], end=3, process=9
        ),
        "unknown",
        [],
    ),
    "every ordinary poll returned nothing": (
        lambda: read_finally(History().sent(1, 2, 3).poll().poll(), *WHOLE[0], end=3, process=9),
        "unknown",
        [],
    ),
    "every ordinary reader had stopped before most was acknowledged": (
        lambda: read_finally(
            History().send(1, 0).poll((0, 1)).send(2, 1).send(3, 2),
            *WHOLE[0],
            end=3,
            process=9,
        ),
        "unknown",
        [],
    ),
    "a poll failed because what was served is corrupt": (
        lambda: read_finally(
            three().op(1, "poll", outcome="fail", error="CORRUPT_MESSAGE: checksum of x-0 at 3"),
            *WHOLE[0],
            end=3,
            process=9,
        ),
        False,
        ["corrupt-read"],
    ),
    "a reader stands behind the end of the log": (
        lambda: read_finally(
            three().op(1, "poll", outcome="fail", error="OFFSET_OUT_OF_RANGE: x-0: 3 is too high"),
            *WHOLE[0],
            end=3,
            process=9,
        ),
        False,
        ["truncated-read"],
    ),
}

LEGAL: dict[str, tuple[Case, Valid, list[str]]] = {
    "a poll of unknown outcome may have taken the record": (
        lambda: History().sent(1, 2, 3).poll((0, 1)).poll(outcome="info").poll((2, 3)),
        "unknown",
        ["unseen"],
    ),
    "a final poll of unknown outcome may have taken the record": (
        lambda: read_finally(
            three()
            .poll((0, 1), process=9, f="final_poll")
            .poll(process=9, f="final_poll", outcome="info"),
            (2, 3),
            end=3,
            process=9,
        ),
        "unknown",
        [],
    ),
    "a member of a group goes on at what another has committed": (
        lambda: (
            History()
            .sent(1, 2, 3)
            .op(1, "subscribe", [("x-0", -1, 0)])
            .poll((0, 1))
            .poll(outcome="info")
            .op(2, "subscribe", [("x-0", -1, 0)])
            .poll((2, 3), process=2)
        ),
        "unknown",
        ["unseen"],
    ),
    "a reader that sought to an offset was refused it": (
        lambda: read_finally(
            three()
            .op(1, "seek", [("x-0", 7, 0)])
            .op(1, "poll", outcome="fail", error="OFFSET_OUT_OF_RANGE: x-0: 7 is too high"),
            *WHOLE[0],
            end=3,
            process=9,
        ),
        True,
        [],
    ),
    "the log end was answered before the record was acknowledged": (
        lambda: read_finally(
            History()
            .sent(1)
            .op(9, "final_end", [("x-0", 1, 0)], "fail", at=(90_000_000, 190_000_000))
            .send(2, 1, at=(100_000_000, 150_000_000))
            .poll((0, 1), (1, 2)),
            (0, 1),
            (1, 2),
            end=2,
            process=9,
        ),
        True,
        [],
    ),
    "a final reader gets a record that came after another had finished": (
        lambda: read_finally(
            read_finally(
                History().sent(1).send(2, process=5, outcome="info"), (0, 1), end=1, process=8
            ),
            (0, 1),
            (1, 2),
            end=2,
            process=9,
        ),
        True,
        [],
    ),
    "two final readers that both had all": (
        lambda: with_two_final_readers(WHOLE, WHOLE),
        True,
        [],
    ),
    "one final reader that did not finish beside one that did": (
        lambda: read_finally(
            read_finally(three(), *WHOLE[0], end=3, process=8), (0, 1), end=None, process=9
        ),
        True,
        [],
    ),
}


EVERY = BAD | LEGAL


@pytest.mark.parametrize("name", EVERY)
def test_the_verdict_is_true(name: str) -> None:
    make, valid, anomalies = EVERY[name]
    verdict = make().verdict()
    kinds = [one for one in found(verdict) if one != "unseen" or valid == "unknown"]
    assert (verdict.valid, kinds) == (valid, anomalies), verdict.as_json()
    assert (verdict.valid == "unknown") <= bool(verdict.unknown_because)


@pytest.mark.parametrize("dense", [True, False])
def test_a_hole_is_a_finding_in_a_history_that_says_it_is_dense(
    dense: bool, tmp_path: Path
) -> None:
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
