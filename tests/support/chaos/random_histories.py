"""Seeded histories of a cluster that keeps its promises, and the ways to break them.

The cluster is one list per key: a record's place is decided at one moment inside its send, a poll
sees the list at one moment inside the poll. So a history is good by construction.
"""

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from tests.support.chaos.hand_made_histories import Op, Row

KEYS = ("a-0", "a-1", "b-0")
PRODUCERS, CONSUMERS, FINAL_READER = 4, 3, 90
NEXT_LIFE = 100  # added to a process number when it ended in info


@dataclass
class Sketch:
    """A history that can still be changed."""

    ops: list[Op]
    log: dict[str, list[tuple[int, int, int]]]  # key -> (moment, offset, value)
    rng: random.Random
    expected: set[str] = field(default_factory=set)

    def polls(self, f: str = "poll") -> list[Op]:
        return [op for op in self.ops if op.f == f and op.outcome == "ok"]

    def acknowledged(self) -> list[Row]:
        return [
            row for op in self.ops if op.f == "send" and op.outcome == "ok" for row in op.messages
        ]


def good(seed: int, sends: int = 60) -> Sketch:
    rng = random.Random(seed)
    ops: list[Op] = []
    appends: list[tuple[int, str, Op, int]] = []  # moment, key, operation, value
    value = 0
    for process in range(PRODUCERS):
        now, number = rng.randrange(1000), process
        for _ in range(sends // PRODUCERS):
            end = now + rng.randrange(10, 3000)
            op = Op(number, "send", now, end, rng.choices(["ok", "info", "fail"], [90, 6, 4])[0])
            moments = sorted(
                rng.randrange(now, end + 1) for _ in range(rng.choice([1, 1, 1, 2, 3]))
            )
            for moment in moments:
                value += 1
                op.messages.append((rng.choice(KEYS), -1, value))
                if op.outcome == "ok" or (op.outcome == "info" and rng.random() < 0.5):
                    appends.append((moment, op.messages[-1][0], op, len(op.messages) - 1))
            if op.outcome == "info":
                number += NEXT_LIFE
                op.end_ns = None if rng.random() < 0.3 else end
            ops.append(op)
            now = end + rng.randrange(1, 1000)
    log = _place(appends, rng)
    horizon = max(op.end_ns or 0 for op in ops)
    for process in range(10, 10 + CONSUMERS):
        ops += _consume(process, log, horizon, rng)
    ops += _final_reads(log, max(op.end_ns or 0 for op in ops) + 10_000, rng)
    return Sketch(ops, log, rng)


def _place(
    appends: list[tuple[int, str, Op, int]], rng: random.Random
) -> dict[str, list[tuple[int, int, int]]]:
    log: dict[str, list[tuple[int, int, int]]] = {key: [] for key in KEYS}
    next_offset = dict.fromkeys(KEYS, 0)
    for moment, key, op, place in sorted(appends, key=lambda append: append[0]):
        next_offset[key] += rng.random() < 0.1  # a transaction marker lies here
        offset, value = next_offset[key], op.messages[place][2]
        next_offset[key] += 1
        log[key].append((moment, offset, value))
        if op.outcome == "ok":
            op.messages[place] = (key, offset, value)
    return log


def _consume(
    process: int, log: dict[str, list[tuple[int, int, int]]], horizon: int, rng: random.Random
) -> list[Op]:
    ops: list[Op] = []
    position: dict[str, int] = {}
    now = 0
    while now < horizon:
        end = now + rng.randrange(1, 2500)
        choice = rng.random()
        if not position or choice < 0.1:
            keys = rng.sample(KEYS, rng.randrange(1, len(KEYS) + 1))
            position = {key: position.get(key, 0) for key in keys}
            ops.append(Op(process, "assign", now, end, "ok", [(key, -1, 0) for key in keys]))
        elif choice < 0.15:
            key = rng.choice(sorted(position))
            position[key] = rng.randrange(len(log[key]) + 1)
            ops.append(Op(process, "seek", now, end, "ok", [(key, position[key], 0)]))
        else:
            rows = _read(log, position, rng.randrange(now, end + 1), rng.randrange(1, 6))
            ops.append(Op(process, "poll", now, end, "ok", rows))
        now = end + rng.randrange(1, 500)
    return ops


def _read(
    log: dict[str, list[tuple[int, int, int]]], position: dict[str, int], moment: int, most: int
) -> list[Row]:
    rows: list[Row] = []
    for key, start in position.items():
        there = bisect_right([record[0] for record in log[key]], moment)
        upto = max(start, min(there, start + most))
        rows += [(key, offset, value) for _, offset, value in log[key][start:upto]]
        position[key] = upto
    return rows


def _final_reads(
    log: dict[str, list[tuple[int, int, int]]], now: int, rng: random.Random
) -> list[Op]:
    ops = []
    position = dict.fromkeys(KEYS, 0)
    while any(position[key] < len(log[key]) for key in KEYS):
        rows = _read(log, position, now, rng.randrange(3, 9))
        ops.append(Op(FINAL_READER, "final_poll", now, now + 100, "ok", rows))
        now += 200
    ends = [(key, records[-1][1] + 1 if records else 0, 0) for key, records in log.items()]
    return [*ops, Op(FINAL_READER, "final_end", now, now + 100, "ok", ends)]


# Each plant breaks one promise, and names the anomaly that must be found.


def lose(sketch: Sketch) -> str:
    """Nobody ever polls an acknowledged record."""
    victim = sketch.rng.choice(sketch.acknowledged())
    for op in sketch.ops:
        if "poll" in op.f:
            op.messages = [row for row in op.messages if row != victim]
    return "lost-write"


def vanish(sketch: Sketch) -> str:
    """A record is polled, and gone in the end."""
    polled = {row for op in sketch.polls() for row in op.messages}
    victim = sketch.rng.choice(sorted(polled))
    for op in sketch.polls("final_poll"):
        op.messages = [row for row in op.messages if row != victim]
    return "vanished-write"


def duplicate(sketch: Sketch) -> str:
    """A record is there twice."""
    _append_finally(sketch, sketch.rng.choice(sketch.acknowledged())[2])
    return "duplicate"


def phantom(sketch: Sketch) -> str:
    """A log has a record that no producer sent."""
    _append_finally(sketch, 10**9)
    return "phantom"


def resurrect(sketch: Sketch) -> str:
    """A record is there whose send failed for certain."""
    failed = [op for op in sketch.ops if op.f == "send" and op.outcome == "fail"]
    op = sketch.rng.choice(failed)
    _append_finally(sketch, op.messages[0][2], op.messages[0][0])
    return "G1a"


def disagree(sketch: Sketch) -> str:
    """Two readers see different values at one offset."""
    op = sketch.rng.choice([op for op in sketch.polls() if op.messages])
    key, offset, value = op.messages[0]
    other = next(row[2] for row in sketch.acknowledged() if row[0] == key and row[2] != value)
    op.messages[0] = (key, offset, other)
    return "inconsistent-offsets"


def skip(sketch: Sketch) -> str:
    """One poll leaves out a record in its middle."""
    op, place = sketch.rng.choice(list(_triples(sketch)))
    del op.messages[place + 1]
    return "int-poll-skip"


def swap(sketch: Sketch) -> str:
    """One poll returns two records in the wrong order."""
    op, place = sketch.rng.choice(list(_triples(sketch)))
    rows = op.messages
    rows[place], rows[place + 1] = rows[place + 1], rows[place]
    return "int-nonmonotonic-poll"


def go_back(sketch: Sketch) -> str:
    """A reader gets its last records again."""
    first, second = sketch.rng.choice(list(_followers(sketch)))
    key = second.messages[0][0]
    second.messages = [row for row in first.messages if row[0] == key] + second.messages
    return "nonmonotonic-poll"


def jump(sketch: Sketch) -> str:
    """A reader's next poll leaves out the record that comes next."""
    _, second = sketch.rng.choice(
        [pair for pair in _followers(sketch) if _of_first_key(pair[1]) >= 2]
    )
    del second.messages[0]
    return "poll-skip"


def reorder_sends(sketch: Sketch) -> str:
    """A producer's later send went below its earlier one."""
    _swap_places(sketch, lambda one, other: one.process == other.process)
    return "nonmonotonic-send"


def travel(sketch: Sketch) -> str:
    """A record went below one that had been acknowledged before it was sent."""
    _swap_places(sketch, lambda one, other: one.process != other.process)
    return "nonlinearizable-log"


PLANTS: tuple[Callable[[Sketch], str], ...] = (
    lose, vanish, duplicate, phantom, resurrect, disagree, skip, swap, go_back, jump,
    reorder_sends, travel,
)  # fmt: skip


def _append_finally(sketch: Sketch, value: int, key: str | None = None) -> None:
    for op in reversed(sketch.polls("final_poll")):
        sent = {row[2]: row[0] for each in sketch.ops if each.f == "send" for row in each.messages}
        name = key or sent.get(value, KEYS[0])
        end = sketch.log[name][-1][1] + 1 if sketch.log[name] else 0
        op.messages.append((name, end, value))
        return


def _triples(sketch: Sketch) -> list[tuple[Op, int]]:
    return [
        (op, place)
        for op in sketch.polls()
        for place in range(len(op.messages) - 2)
        if op.messages[place][0] == op.messages[place + 1][0] == op.messages[place + 2][0]
    ]


def _followers(sketch: Sketch) -> list[tuple[Op, Op]]:
    """Return polls of one process, right after each other, where the first key is in both."""
    mine = [op for op in sketch.ops if op.process in range(10, 10 + CONSUMERS)]
    mine.sort(key=lambda op: (op.process, op.start_ns))
    return [
        (one, other)
        for one, other in pairwise(mine)
        if one.process == other.process
        and one.f == other.f == "poll"
        and other.messages
        and other.messages[0][0] in {row[0] for row in one.messages}
    ]


def _of_first_key(op: Op) -> int:
    return sum(row[0] == op.messages[0][0] for row in op.messages)


def _swap_places(sketch: Sketch, wanted: Callable[[Op, Op], bool]) -> None:
    """Give two records, one sent after the other was acknowledged, each other's offset."""
    sends = [op for op in sketch.ops if op.f == "send" and op.outcome == "ok"]
    pairs = [
        (one.messages[0], other.messages[0])
        for one in sends
        for other in sends
        if (one.end_ns or 0) < other.start_ns
        and one.messages[0][0] == other.messages[0][0]
        and wanted(one, other)
    ]
    one, other = sketch.rng.choice(pairs)
    new = {one: (one[0], one[1], other[2]), other: (other[0], other[1], one[2])}
    for op in sketch.ops:
        if op.f == "send":
            places = {one: (one[0], other[1], one[2]), other: (other[0], one[1], other[2])}
            op.messages = [places.get(row, row) for row in op.messages]
        else:
            op.messages = [new.get(row, row) for row in op.messages]
