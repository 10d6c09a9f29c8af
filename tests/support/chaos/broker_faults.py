"""Faults of a broker: it loses, doubles, reorders or corrupts records, or serves too few.

Each takes a run whose producers are done, breaks one promise about a record that was acknowledged
(so that clients rely on it), and returns the broken broker; None: this run has no such record.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.chaos.broker_model import KEYS, Fault, Record, Run
from tests.support.chaos.hand_made_histories import Row

NEVER = 1 << 40


@dataclass
class Without(Fault):
    """From a moment on, these offsets hold nothing; a tail that is gone lowers the end."""

    since: int = NEVER
    offsets: frozenset[int] = frozenset()

    def view(self, key: str, moment: int, rows: list[Row]) -> list[Row]:
        if key != self.key or moment < self.since:
            return rows
        return [row for row in rows if row[1] not in self.offsets]

    def end(self, key: str, moment: int, end: int) -> int:
        if key != self.key or moment < self.since:
            return end
        while end - 1 in self.offsets:
            end -= 1
        return end


@dataclass
class With(Fault):
    """From a moment on, there is one record more, at an offset that the ideal log leaves unused."""

    since: int = NEVER
    row: Row = ("", -1, 0)

    def view(self, key: str, moment: int, rows: list[Row]) -> list[Row]:
        if key != self.key or moment < self.since or (rows and rows[-1][1] < self.row[1]):
            return rows
        return sorted([*rows, self.row], key=lambda row: row[1])


@dataclass
class Renamed(Fault):
    """From a moment on, records lie at other offsets."""

    since: int = NEVER
    offsets: dict[int, int] = field(default_factory=dict)

    def view(self, key: str, moment: int, rows: list[Row]) -> list[Row]:
        if key != self.key or moment < self.since:
            return rows
        moved = [(name, self.offsets.get(offset, offset), value) for name, offset, value in rows]
        return sorted((row for row in moved if row[1] >= 0), key=lambda row: row[1])

    def end(self, key: str, moment: int, end: int) -> int:
        if key != self.key or moment < self.since:
            return end
        return max((new + 1 for old, new in self.offsets.items() if old < end), default=end)


@dataclass
class Once(Fault):
    """One poll is served wrongly: the first that gets at least `least` rows of the key."""

    how: Callable[[list[Row], int], list[Row]] = lambda rows, _: rows
    fits: Callable[[Sequence[Row]], bool] = bool
    skip: int = 0
    is_done: bool = False

    def serve(self, key: str, rows: list[Row], position: int, count: int) -> tuple[list[Row], int]:
        got, after = super().serve(key, rows, position, count)
        if self.is_done or key != self.key or not self.fits(got):
            return got, after
        if self.skip:
            self.skip -= 1
            return got, after
        self.is_done = True
        return self.how(got, position), after


@dataclass
class Refused(Fault):
    """One poll fails with an error that reports a loss."""

    code: str = ""
    after: int = 0

    def error(self) -> str:
        self.after -= 1
        return self.code if self.after == 0 else ""


@dataclass
class LowEnd(Fault):
    """Every so often, an answered end is too low."""

    every: int = 2
    by: int = 1
    asked: int = 0

    def end(self, key: str, moment: int, end: int) -> int:
        del key, moment
        self.asked += 1
        return max(0, end - self.by) if self.asked % self.every == 0 else end


def _acked(run: Run, key: str) -> list[Record]:
    return [record for record in run.log[key] if record.is_acked]


def _victim(run: Run) -> tuple[str, Record] | None:
    found = [(key, record) for key in KEYS for record in _acked(run, key)]
    return run.rng.choice(found) if found else None


def loses_a_record(run: Run) -> Fault | None:
    """An acknowledged record is gone from some moment on."""
    if (picked := _victim(run)) is None:
        return None
    key, victim = picked
    since = run.rng.choice([0, victim.moment, victim.moment + 100, victim.moment + 300])
    return Without(key, since, frozenset({victim.offset}))


def loses_a_tail(run: Run) -> Fault | None:
    """The last records are gone, and the log ends before them."""
    key = run.rng.choice(KEYS)
    tail = run.log[key][-run.rng.randrange(1, 4) :]
    if not tail or not all(record.is_acked for record in tail):
        return None
    since = tail[-1].moment + run.rng.randrange(300)
    return Without(key, since, frozenset(range(tail[0].offset, tail[-1].offset + 1)))


def truncates(run: Run) -> Fault | None:
    """Acknowledged records are cut off, and later ones get their offsets."""
    key = run.rng.choice(KEYS)
    log = run.log[key]
    cut = [
        place
        for place in range(1, len(log))
        if log[place - 1].is_acked
        and log[place].is_acked
        and log[place].send.start_ns > (log[place - 1].send.end_ns or NEVER)
    ]
    if not cut:
        return None
    place = run.rng.choice(cut)
    gone, shift = log[place - 1], log[place].offset - log[place - 1].offset
    offsets = {record.offset: record.offset - shift for record in log[place:]}
    for record in log[place:]:
        key_, offset, value = record.send.messages[record.place]
        if offset >= 0:
            record.send.messages[record.place] = (key_, offset - shift, value)
    offsets[gone.offset] = -1
    return Renamed(key, log[place].moment, offsets)


def appends_twice(run: Run) -> Fault | None:
    """An acknowledged record is there a second time."""
    picked = [
        (key, record, spare)
        for key in KEYS
        for record in _acked(run, key)
        for spare in run.spare[key]
        if spare > record.offset
    ]
    if not picked:
        return None
    key, record, spare = run.rng.choice(picked)
    return With(key, record.moment, (key, spare, record.value))


def serves_what_nobody_sent(run: Run) -> Fault | None:
    """A record is there that no client sent."""
    picked = [(key, spare) for key in KEYS for spare in run.spare[key]]
    if not picked:
        return None
    key, spare = run.rng.choice(picked)
    return With(key, 0, (key, spare, 10**9))


def appends_what_it_refused(run: Run) -> Fault | None:
    """A record is in the log although its producer received a final error."""
    picked = [
        (op, row, spare) for op in run.failed for row in op.messages for spare in run.spare[row[0]]
    ]
    if not picked:
        return None
    op, (key, _, value), spare = run.rng.choice(picked)
    return With(key, op.start_ns, (key, spare, value))


def reorders(run: Run) -> Fault | None:
    """Two records, one sent after the other was acknowledged, have each other's places."""
    pairs = [
        (key, one, other)
        for key in KEYS
        for one in _acked(run, key)
        for other in _acked(run, key)
        if one.send.end_ns is not None and one.send.end_ns < other.send.start_ns
    ]
    if not pairs:
        return None
    key, one, other = run.rng.choice(pairs)
    for record, place in ((one, other), (other, one)):
        record.send.messages[record.place] = (key, place.offset, record.value)
    run.damage.append("acknowledgements in the wrong order")
    return Renamed(key, 0, {one.offset: other.offset, other.offset: one.offset})


def tells_offset_zero(run: Run) -> Fault | None:
    """An acknowledgement names offset 0, where an acknowledged record lies."""
    picked = [
        (key, record)
        for key in KEYS
        if (acked := _acked(run, key)) and acked[0].offset == 0
        for record in acked[1:]
    ]
    if not picked:
        return None
    key, record = run.rng.choice(picked)
    record.send.messages[record.place] = (key, 0, record.value)
    run.damage.append("an acknowledgement with the wrong offset")
    return Fault()


def _once(
    run: Run, how: Callable[[list[Row], int], list[Row]], fits: Callable[[Sequence[Row]], bool]
) -> Fault:
    return Once(run.rng.choice(KEYS), how, fits, run.rng.randrange(4))


def leaves_one_out(run: Run) -> Fault | None:
    """One poll leaves out a record that was acknowledged, though it returns a later one."""
    acked = {record.value for key in KEYS for record in _acked(run, key)}
    return _once(
        run,
        lambda rows, _: [rows[0], *rows[2:]],
        lambda rows: len(rows) >= 3 and rows[1][2] in acked,
    )


def begins_late(run: Run) -> Fault | None:
    """One poll of the first record does not return it."""
    acked = {record.value for key in KEYS for record in _acked(run, key)}
    firsts = {run.log[key][0].value for key in KEYS if run.log[key]}
    return _once(
        run, lambda rows, _: rows[1:], lambda rows: len(rows) >= 2 and rows[0][2] in firsts & acked
    )


def goes_back(run: Run) -> Fault | None:
    """One poll returns a record twice."""
    return _once(run, lambda rows, _: [*rows, rows[0]], lambda rows: len(rows) >= 1)


def swaps(run: Run) -> Fault | None:
    """One poll returns two records in the wrong order."""
    return _once(run, lambda rows, _: [rows[1], rows[0], *rows[2:]], lambda rows: len(rows) >= 2)


def shows_another_value(run: Run) -> Fault | None:
    """One poll shows an acknowledged value at the offset of another."""
    acked = {record.value for key in KEYS for record in _acked(run, key)}
    return _once(
        run,
        lambda rows, _: [rows[0], (*rows[1][:2], rows[0][2]), *rows[2:]],
        lambda rows: len(rows) >= 2 and rows[0][2] in acked and rows[1][2] in acked,
    )


def serves_corrupt_bytes(run: Run) -> Fault | None:
    """One poll returns a batch with a wrong checksum."""
    return Refused("", "CORRUPT_MESSAGE: a-0: wrong checksum", run.rng.randrange(1, 20))


def answers_a_low_end(run: Run) -> Fault | None:
    """The answered end is too low every now and then."""
    return LowEnd("", run.rng.randrange(1, 4), run.rng.randrange(1, 8))


FAULTS: tuple[Callable[[Run], Fault | None], ...] = (
    loses_a_record,
    loses_a_tail,
    truncates,
    appends_twice,
    serves_what_nobody_sent,
    appends_what_it_refused,
    reorders,
    tells_offset_zero,
    leaves_one_out,
    begins_late,
    goes_back,
    swaps,
    shows_another_value,
    serves_corrupt_bytes,
    answers_a_low_end,
)
