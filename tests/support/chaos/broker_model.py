"""A model of a broker and its clients: runs of an ideal one, and of ones with one fault each.

A run is drawn from a seed: producers with retries and lost answers, ordinary readers with positions
(polls that fail, that never end, that return nothing any more), at least two final readers. Every
request is served at one moment between its start and its end. A `Fault` (see broker_faults) changes
the responses. The model records the observations of clients, and judges them by itself:
`Run.damage` names each observation that an ideal broker could not have given.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.chaos.hand_made_histories import Op, Row

KEYS = ("a-0", "a-1")
_PRODUCERS, _READERS, _FINAL_READERS = 3, 2, 2
_NEXT_LIFE = 100
_LATE = 400  # how long after its client has given up a send may still take effect
_MOST_POLLS = 400


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the ideal log. `send`: its operation; `place`: its message in it."""

    moment: int
    offset: int
    value: int
    send: Op
    place: int

    @property
    def is_acked(self) -> bool:
        return self.send.messages[self.place][1] >= 0


@dataclass
class Fault:
    """The deviations of a broken broker. The defaults are an ideal broker."""

    key: str = ""

    def view(self, key: str, moment: int, rows: list[Row]) -> list[Row]:
        """Return the log that is served at a moment; `rows`: the ideal one."""
        del key, moment
        return rows

    def end(self, key: str, moment: int, end: int) -> int:
        """Return the log end offset that is answered."""
        del key, moment
        return end

    def serve(self, key: str, rows: list[Row], position: int, count: int) -> tuple[list[Row], int]:
        """Return the rows of one poll, at most `count`, and the new position (offset)."""
        del key
        got = [row for row in rows if row[1] >= position][:count]
        return got, got[-1][1] + 1 if got else position

    def error(self) -> str:
        """Return the error of a poll; "": it succeeds."""
        return ""


@dataclass
class Run:
    """The observations of clients, and those impossible with an ideal broker."""

    rng: random.Random
    calm: bool  # nothing but sends is ever uncertain, and every final reader comes to an end
    ops: list[Op] = field(default_factory=list)
    log: dict[str, list[Record]] = field(default_factory=lambda: {key: [] for key in KEYS})
    spare: dict[str, list[int]] = field(default_factory=lambda: {key: [] for key in KEYS})
    failed: list[Op] = field(default_factory=list)
    fault: Fault = field(default_factory=Fault)
    damage: list[str] = field(default_factory=list)
    ends_told: list[tuple[str, int, int]] = field(default_factory=list)  # key, when, end
    seen: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: {k: [] for k in KEYS})

    def ideal(self, key: str, moment: int) -> list[Row]:
        records = self.log[key]
        there = bisect_right([record.moment for record in records], moment)
        return [(key, record.offset, record.value) for record in records[:there]]

    def end_of(self, key: str, moment: int) -> int:
        rows = self.ideal(key, moment)
        return rows[-1][1] + 1 if rows else 0

    def served(self, key: str, moment: int) -> list[Row]:
        return self.fault.view(key, moment, self.ideal(key, moment))


def produced(seed: int, *, calm: bool) -> Run:
    """Return a run in which producers have done their work: the ideal log, and its sends."""
    run = Run(rng=random.Random(seed), calm=calm)
    rng = run.rng
    appends: list[tuple[int, Op, int]] = []
    value = 0
    for lane in range(_PRODUCERS):
        process, now = lane, rng.randrange(50)
        for _ in range(rng.randrange(3, 8)):
            end = now + rng.randrange(2, 60)
            outcome = rng.choices(["ok", "info", "fail"], [8, 1, 1])[0]
            op = Op(process, "send", now, end, outcome)
            for _ in range(rng.choice([1, 1, 2, 3])):
                value += 1
                op.messages.append((rng.choice(KEYS), -1, value))
            if outcome == "fail":
                run.failed.append(op)
            elif outcome == "ok":
                moments = sorted(rng.randrange(now, end + 1) for _ in op.messages)
                appends += [(moment, op, place) for place, moment in enumerate(moments)]
            else:
                late = 0 if calm else _LATE
                moments = sorted(rng.randrange(now, end + 1 + late) for _ in op.messages)
                there = rng.randrange(len(op.messages) + 1)  # a crash cuts the rest off
                appends += [(moments[place], op, place) for place in range(there)]
                process += _NEXT_LIFE
                if rng.random() < 0.3:
                    op.end_ns = None
            run.ops.append(op)
            now = end + rng.randrange(1, 40)
    _place(run, appends)
    return run


def _place(run: Run, appends: list[tuple[int, Op, int]]) -> None:
    """Give records their offsets, in the order of their moments, with unused ones between."""
    next_offset = dict.fromkeys(KEYS, 0)
    for moment, op, place in sorted(appends, key=lambda append: append[0]):
        key, _, value = op.messages[place]
        if run.rng.random() < 0.15:
            run.spare[key].append(next_offset[key])
            next_offset[key] += 1
        offset = next_offset[key]
        next_offset[key] += 1
        is_told = op.end_ns is not None and moment <= op.end_ns
        if op.outcome == "ok" or (is_told and run.rng.random() < 0.5):
            op.messages[place] = (key, offset, value)
        run.log[key].append(Record(moment, offset, value, op, place))


def consumed(run: Run) -> Run:
    """Let readers read from the run's broker, then the final readers."""
    horizon = max(op.end_ns or op.start_ns for op in run.ops) + 20
    for process in range(10, 10 + _READERS):
        _Reader(run, process, "poll").live(0, horizon)
    if run.calm or run.rng.random() < 0.7:
        horizon += _LATE  # no send takes effect any more
    for process in range(20, 20 + _FINAL_READERS):
        _Reader(run, process, "final_poll").live(horizon + run.rng.randrange(30), None)
    _judge_ends(run)
    return run


class _Reader:
    """A reader from the beginning. `positions`: its own; `known`: those its client has."""

    def __init__(self, run: Run, process: int, f: str) -> None:
        self.run, self.process, self.f = run, process, f
        self.rng = run.rng
        self.positions = dict.fromkeys(KEYS, 0)
        self.known: dict[str, int | None] = dict.fromkeys(KEYS, 0)
        self.rows: dict[str, list[Row]] = {key: [] for key in KEYS}
        self.is_sound = True
        self.parked: set[str] = set()

    def live(self, now: int, horizon: int | None) -> None:
        """Poll until `horizon`; None: until every log was read to its end."""
        self.add("assign", now, now + 1, "ok", [(key, -1, 0) for key in KEYS])
        now += 2
        give_up = (
            self.rng.randrange(3, 30) if not self.run.calm and self.rng.random() < 0.2 else 999
        )
        for turn in range(_MOST_POLLS):
            if (horizon is not None and now >= horizon) or turn > give_up:
                return
            now = self.step(now, is_final=horizon is None)
            if now < 0:
                return

    def step(self, now: int, *, is_final: bool) -> int:
        """Do one thing; return when the next may begin, -1: nothing more is to be done."""
        rng, end = self.rng, now + self.rng.randrange(1, 25)
        moment = rng.randrange(now, end + 1)
        choice = rng.random() if not self.run.calm else 1.0
        if choice < 0.04:
            self.add(self.f, now, end, "fail", "NETWORK_EXCEPTION: lost")
        elif choice < 0.08:
            self.lose_track(now, end, moment)
        elif choice < 0.10 and not is_final:
            self.seek(now, end)
        elif choice < 0.12 and not is_final:
            self.parked.add(rng.choice(KEYS))
        elif is_final and rng.random() < 0.3:
            if self.ask(now, end, moment):
                return -1
        else:
            self.poll(now, end, moment)
        return end + rng.randrange(2, 12)

    def poll(self, now: int, end: int, moment: int) -> None:
        run = self.run
        if error := run.fault.error():
            self.add(self.f, now, end, "fail", error)
            run.damage.append(error)
            return
        shown: list[Row] = []
        for key in self.rng.sample(KEYS, len(KEYS)):
            count = self.rng.randrange(1, 6)
            if key in self.parked:
                continue
            served = run.served(key, moment)
            rows, self.positions[key] = run.fault.serve(key, served, self.positions[key], count)
            self.look_at(key, rows, end)
            shown += rows
        self.add(self.f, now, end, "ok", shown)

    def look_at(self, key: str, rows: Sequence[Row], end: int) -> None:
        """Compare the result of a poll with the ideal log, from the client's position."""
        if not rows:
            return
        run = self.run
        ideal = run.ideal(key, end)
        start = self.known[key]
        if start is None:
            start = rows[0][1]
        expected = [row for row in ideal if row[1] >= start][: len(rows)]
        if list(rows) != expected:
            run.damage.append(f"{self.process} got {rows}, not {expected}")
        self.known[key] = rows[-1][1] + 1
        self.rows[key] += rows
        run.seen[key] += [(end, row[1]) for row in rows]

    def lose_track(self, now: int, end: int, moment: int) -> None:
        """Let a poll end without an answer; it may have moved the reader."""
        if self.rng.random() < 0.5:
            for key in KEYS:
                served = self.run.served(key, moment)
                count = self.rng.randrange(5)
                _, self.positions[key] = Fault().serve(key, served, self.positions[key], count)
        is_replaced = self.rng.random() < 0.5  # by a new client, that begins again
        never_ends = is_replaced and self.rng.random() < 0.4
        self.add(self.f, now, None if never_ends else end, "info", [])
        if is_replaced:
            self.process += _NEXT_LIFE
            self.positions = dict.fromkeys(KEYS, 0)
            self.known = dict.fromkeys(KEYS, 0)
            self.rows = {key: [] for key in KEYS}
            self.is_sound = True
            start = end + 1
            self.add("assign", start, start + 1, "ok", [(key, -1, 0) for key in KEYS])
        else:
            self.known = dict.fromkeys(KEYS)
            self.is_sound = False

    def seek(self, now: int, end: int) -> None:
        key = self.rng.choice(KEYS)
        top = self.run.end_of(key, now)
        self.positions[key] = self.rng.randrange(top + 1)
        self.known[key] = None
        self.is_sound = False
        self.add("seek", now, end, "ok", [(key, self.positions[key], 0)])

    def ask(self, now: int, end: int, moment: int) -> bool:
        """Request the log end offsets; return whether the reader has read all below."""
        run = self.run
        ends = {key: run.fault.end(key, moment, run.end_of(key, moment)) for key in KEYS}
        is_reached = all(_reaches(run, self, key, top) for key, top in ends.items())
        told = [(key, top, 0) for key, top in ends.items()]
        self.add("final_end", now, end, "ok" if is_reached else "fail", told)
        for key, top in ends.items():
            run.ends_told.append((key, end, top))
            if is_reached and self.is_sound:
                expected = [row for row in run.ideal(key, end) if row[1] < top]
                if [row for row in self.rows[key] if row[1] < top] != expected:
                    run.damage.append(f"{self.process} has not read all of {key} below {top}")
        return is_reached

    def add(self, f: str, start: int, end: int | None, outcome: str, rows: list[Row] | str) -> None:
        """Write an operation down; `rows` may be the text of an error instead."""
        op = Op(self.process, f, start, end, outcome)
        op.messages, op.error = ([], rows) if isinstance(rows, str) else (rows, "")
        self.run.ops.append(op)


def _reaches(run: Run, reader: _Reader, key: str, top: int) -> bool:
    """Return whether a reader is at the end, or has only unused offsets before it."""
    position = reader.positions[key]
    return not any(position <= record.offset < top for record in run.log[key]) or position >= top


def _judge_end(run: Run, key: str, top: int, asked: int) -> None:
    """An end is damage if clients had seen a record there, or a higher end, before."""
    known = [
        record.offset
        for record in run.log[key]
        if record.is_acked and record.send.end_ns is not None and record.send.end_ns <= asked
    ]
    known += [offset for when, offset in run.seen[key] if when <= asked]
    known += [end - 1 for name, when, end in run.ends_told if name == key and when <= asked]
    if known and top <= max(known):
        run.damage.append(f"{key} ends at {top}, though {max(known)} was known")


def _judge_ends(run: Run) -> None:
    """Compare every end with the earlier observations of clients."""
    asked = [op for op in run.ops if op.f == "final_end"]
    for op in asked:
        for key, top, _ in op.messages:
            _judge_end(run, key, top, op.start_ns)
