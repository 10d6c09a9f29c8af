"""The rules of docs/verification.md once more, slowly: loops over operations, no arrays.

`judge` returns what a Verdict says (valid, and how often each anomaly) of one history, given as
the operations that `hand_made` takes. Every question is answered by looking at all operations.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from quorumlog.chaos.history import NEMESIS, Operation

Value = tuple[str, int]  # key, value
Place = tuple[str, int]  # key, offset


@dataclass(frozen=True)
class Done:
    """One operation: its two rows, if it has two."""

    op: int
    end: int | None
    process: int
    f: str
    outcome: str
    start_ns: int
    end_ns: float
    messages: tuple[tuple[str, int, int], ...]
    rebalanced: bool

    @property
    def acked(self) -> bool:
        return self.outcome == "ok"


def operations_of(rows: Sequence[Operation]) -> list[Done]:
    """Pair the rows of well-formed histories: a process does one thing at a time."""
    found: list[Done] = []
    for place, row in enumerate(rows):
        if row.type != "invoke":
            continue
        end = next((r for r in rows[place + 1 :] if r.process == row.process), None)
        if end is not None and end.type == "invoke":
            end = None
        told = end.messages if end is not None else ()
        if not told and row.f == "send":
            told = tuple(message._replace(offset=-1) for message in row.messages)
        if row.f not in ("send", "poll", "final_poll", "final_end"):
            told = row.messages
        found.append(
            Done(
                op=row.index,
                end=end.index if end else None,
                process=row.process,
                f=row.f,
                outcome=end.type if end else "info",
                start_ns=row.time_ns,
                end_ns=end.time_ns if end else float("inf"),
                messages=tuple((m.key, m.offset, m.value) for m in told),
                rebalanced=bool(end and end.details == "rebalanced"),
            )
        )
    return found


class Oracle:
    """One history and its answers."""

    def __init__(self, rows: Sequence[Operation], *, marked: bool = True) -> None:
        self.marked = marked
        self.done = operations_of(rows)
        self.ended = [r for r in rows if r.process == NEMESIS and r.f == "node-ended"]
        self.sends = [op for op in self.done if op.f == "send"]
        self.polls = [op for op in self.done if op.f in ("poll", "final_poll")]
        self.ok_polls = [op for op in self.polls if op.acked]
        self.finals = [op for op in self.ok_polls if op.f == "final_poll"]
        self.ends = [op for op in self.done if op.f == "final_end" and op.acked]
        self.keys = sorted({key for op in self._records() for key, _, _ in op.messages})
        self.log: dict[Place, set[int]] = {}
        for op in (*self.sends, *self.polls):
            for key, offset, value in op.messages:
                if offset >= 0 and (op.f != "send" or op.outcome in ("ok", "info")):
                    self.log.setdefault((key, offset), set()).add(value)
        self.sent = Counter((k, v) for op in self.sends for k, _, v in op.messages)

    def _records(self) -> Iterator[Done]:
        yield from (*self.sends, *self.polls)
        yield from (op for op in self.done if op.f == "final_end")

    def offsets(self, key: str, value: int) -> list[int]:
        return sorted(o for (k, o), held in self.log.items() if k == key and value in held)

    def is_acked(self, value: Value) -> bool:
        return any(
            (k, v) == value and (op.acked or (op.outcome == "info" and o >= 0))
            for op in self.sends
            for k, o, v in op.messages
        )

    def may_be(self, value: Value) -> bool:
        return any(
            op.outcome != "fail" and value in [(k, v) for k, _, v in op.messages]
            for op in self.sends
        )

    def in_polls(self, value: Value, polls: Sequence[Done]) -> bool:
        return any(value == (k, v) for op in polls for k, _, v in op.messages)

    def sought(self, op: Done, key: str) -> bool:
        return any(
            other.f == "seek"
            and other.process == op.process
            and other.op < op.op
            and other.outcome != "fail"
            and key in [k for k, _, _ in other.messages]
            for other in self.done
        )

    def read_to_its_end(self, value: Value) -> bool:
        """Must the value be among what some final_end says was read?"""
        key, number = value
        ends = [(op.op, o) for op in self.ends for k, o, _ in op.messages if k == key]
        if not ends:
            return False
        offsets = self.offsets(key, number)
        if offsets and offsets[-1] < max(end for _, end in ends):
            return True
        known = [
            op.end
            for op in (*self.sends, *self.ok_polls)
            for k, o, v in op.messages
            if (k, v) == value
            and op.end is not None
            and (op.f != "send" or op.acked or (op.outcome == "info" and o >= 0))
        ]
        return any(end < max(at for at, _ in ends) for end in known)

    # --- the anomalies ---

    def phantoms(self) -> int:
        polled = {(k, v) for op in self.polls for k, _, v in op.messages}
        return len([value for value in polled if not self.sent[value]])

    def aborted_reads(self) -> int:
        polled = {(k, v) for op in self.ok_polls for k, _, v in op.messages}
        return len([value for value in polled if self.sent[value] and not self.may_be(value)])

    def conflicts(self) -> int:
        return sum(len(held) > 1 for held in self.log.values())

    def duplicates(self) -> int:
        values = {(k, v) for (k, _), held in self.log.items() for v in held}
        return sum(len(self.offsets(*v)) > 1 and self.sent[v] <= 1 for v in values)

    def unseen(self) -> list[Value]:
        return [v for v in self.sent if self.is_acked(v) and not self.in_polls(v, self.ok_polls)]

    def lost(self) -> list[Value]:
        found = []
        for key, value in self.unseen():
            mine = self.offsets(key, value)
            above = any(
                k == key
                and not self.sought(op, key)
                and mine
                and (their := self.offsets(k, v))
                and their[0] >= mine[-1]
                for op in self.ok_polls
                for k, _, v in op.messages
            )
            if above or self.read_to_its_end((key, value)):
                found.append((key, value))
        return found

    def vanished(self) -> int:
        count = 0
        for key, value in self.sent:
            name = (key, value)
            if not (self.may_be(name) and self.in_polls(name, self.ok_polls)):
                continue
            if self.in_polls(name, self.finals):
                continue
            mine = self.offsets(key, value)
            above = any(
                k == key and not self.sought(op, key) and mine and mine[-1] <= o
                for op in self.finals
                for k, o, _ in op.messages
            )
            count += bool(above or self.read_to_its_end(name))
        return count

    def nonlinearizable(self) -> int:
        places = []
        for (key, offset), held in sorted(self.log.items()):
            (value, *others) = sorted(held)
            sound = not others and len(self.offsets(key, value)) == 1
            mine = [op for op in self.sends if (key, value) in [(k, v) for k, _, v in op.messages]]
            lower, sender = float("-inf"), None
            if sound and mine:
                sender = min(mine, key=lambda op: (op.start_ns, -op.op))
                lower = sender.start_ns
            seen = [
                op
                for op in (*self.polls, *self.sends)
                for k, o, v in op.messages
                if (k, o) == (key, offset)
                and (op.f != "send" or (op.outcome in ("ok", "info") and sound))
            ]
            first = min(seen, key=lambda op: (op.end_ns, -op.op), default=None)
            places.append((key, value, lower, sender, first))
        count = 0
        for at, (key, value, _, _, first) in enumerate(places):
            below = [place for place in places[: at + 1] if place[0] == key]
            _, other, lower, sender, _ = max(reversed(below), key=lambda place: place[2])
            if sender is None or first is None or lower <= first.end_ns:
                continue
            own = sender.process == first.process and first.f == "send"
            own = own and self.sent[key, value] == 1 and self.sent[key, other] == 1
            count += not own
        return count

    # --- the order of one process ---

    def place(self, key: str, value: int) -> int | None:
        """Return the place among the offsets of the key that were seen."""
        mine = self.offsets(key, value)
        if not mine or self.sent[key, value] > 1:
            return None
        return sorted(o for k, o in self.log if k == key).index(mine[-1])

    def runs(self, ops: Sequence[Done], key: str) -> list[tuple[Done, list[int]]]:
        """Return the known places of `key` in each operation that shows any."""
        found = []
        for op in sorted(ops, key=lambda op: op.op):
            places = [self.place(k, v) for k, _, v in op.messages if k == key]
            known = [place for place in places if place is not None]
            if known:
                found.append((op, known))
        return found

    def moved(self, one: Done, other: Done, key: str) -> bool:
        """Was the position of `key` moved between two polls?"""
        if (one.f == "final_poll") != (other.f == "final_poll"):
            return True
        for op in self.done:
            if op.process != one.process or not one.op < op.op < other.op:
                continue
            named = key in [k for k, _, _ in op.messages]
            if op.f in ("poll", "final_poll"):
                if op.outcome == "info":
                    return True
            elif op.outcome != "fail" and (
                op.f == "crash"
                or (op.f in ("assign", "subscribe") and not named)
                or (op.f == "seek" and named)
            ):
                return True
        return False

    def poll_order(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        members = {op.process for op in self.done if op.f == "subscribe" and op.outcome != "fail"}
        for process in {op.process for op in self.polls}:
            for key in self.keys:
                mine = [op for op in self.ok_polls if op.process == process]
                runs = self.runs(mine, key)
                for op, places in runs:
                    steps = [b - a for a, b in pairwise(places) if not op.rebalanced]
                    counts["int-poll-skip"] += sum(step > 1 for step in steps)
                    counts["int-nonmonotonic-poll"] += sum(step < 1 for step in steps)
                for (one, before), (other, after) in pairwise(runs):
                    if self.moved(one, other, key):
                        continue
                    allowed = "allowed " * (process in members)
                    counts[f"{allowed}poll-skip"] += after[0] - before[-1] > 1
                    counts[f"{allowed}nonmonotonic-poll"] += after[0] - before[-1] < 1
        return counts

    def send_order(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for process in {op.process for op in self.sends}:
            for key in self.keys:
                mine = [op for op in self.sends if op.process == process and op.outcome != "fail"]
                last: int | None = None
                for op in sorted(mine, key=lambda op: op.op):
                    rows = [(self.place(k, v), o) for k, o, v in op.messages if k == key]
                    known = [(place, o) for place, o in rows if place is not None]
                    places = [place for place, _ in known]
                    counts["int-nonmonotonic-send"] += sum(b < a + 1 for a, b in pairwise(places))
                    if places and last is not None:
                        counts["nonmonotonic-send"] += places[0] < last + 1
                    settled = [place for place, o in known if op.acked or o >= 0]
                    last = settled[-1] if settled else last
        return counts

    # --- the verdict ---

    def gaps(self) -> bool:
        if any(count > 1 for count in self.sent.values()):
            return True
        if any(o < 0 for op in self.polls for _, o, _ in op.messages):
            return True
        return self.marked and any(not self.complete(key) for key in self.keys)

    def complete(self, key: str) -> bool:
        seen = [offset for k, offset in self.log if k == key]
        final = [
            o
            for op in self.finals
            for k, o, _ in op.messages
            if k == key and not self.sought(op, key)
        ]
        if not seen or (final and max(final) >= max(seen)):
            return True
        ends = [(op.op, o) for op in self.ends for k, o, _ in op.messages if k == key]
        if not ends:
            return False
        at, end = max(at for at, _ in ends), max(end for _, end in ends)
        return not any(
            k == key and o >= end and op.end is not None and op.end > at
            for op in self.done
            for k, o, _ in op.messages
            if (op.f == "send" and op.outcome != "fail") or op.f == "poll"
        )

    def judge(self) -> tuple[bool | Literal["unknown"], dict[str, int]]:
        """Return (valid, counts of the anomalies there are)."""
        lost, unseen = self.lost(), self.unseen()
        orders = self.poll_order() + self.send_order()
        allowed = {n.split()[1]: c for n, c in orders.items() if n.startswith("allowed ")}
        invalid = {
            "node-ended": len(self.ended),
            "phantom": self.phantoms(),
            "G1a": self.aborted_reads(),
            "inconsistent-offsets": self.conflicts(),
            "duplicate": self.duplicates(),
            "lost-write": len(lost),
            "vanished-write": self.vanished(),
            "nonlinearizable-log": self.nonlinearizable(),
            **{n: c for n, c in orders.items() if not n.startswith("allowed ")},
        }
        counts = {name: count for name, count in {**allowed, **invalid}.items() if count}
        if unseen:
            counts["unseen"] = len(unseen)
        acked = any(self.is_acked(value) for value in self.sent)
        polled = any(op.messages for op in self.ok_polls)
        finally_polled = any(op.messages for op in self.finals)
        enough = acked and polled and (finally_polled or not self.marked)
        if any(invalid.values()) or (unseen and not self.marked):
            return False, counts
        if not enough or self.gaps() or len(unseen) > len(lost):
            return "unknown", counts
        return True, counts
