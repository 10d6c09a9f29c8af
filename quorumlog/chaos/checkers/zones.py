"""Linearizability of registers whose values are written once, without a search.

All operations on one value are a *cluster*: the write, the reads, and a compare-and-set that
replaces it. A successful compare-and-set from `a` to `b` joins the clusters of both: no other write
comes between them, so they are one *chain*. Let F be the first completion in a chain, S its last
invocation. If F < S the register holds the chain's values for all of the *forward zone* [F, S];
else all its operations overlap, and it fits at any moment of the *backward zone* [S, F]. A history
is linearizable if and only if
  every value that was seen was written, no value was replaced twice, and no chain is a ring;
  within each chain, moments can be found for its writes, in order: max(L_0 .. L_j) <= U_j, where
    L_j is the last invocation of the operations that must come before (the write itself, reads of
    the value it replaces) and U_j the first completion of those that must come after;
  forward zones are disjoint, and no backward zone lies inside a forward zone.
An operation of unknown outcome counts only if an operation that counts saw its value, over any
number of such steps: a write that only a compare-and-set of unknown outcome saw counts if the
compare-and-set does. Sources: Gibbons and Korach, Testing Shared Memories (1997), for the zones;
chains and unknown outcomes are an extension, compared with two searches in
tests/property/test_linearizability_agrees.py.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from quorumlog.chaos.checkers.entries import Flags, Ints, Kinds
from quorumlog.chaos.history.model import NEVER_NS

READ: Final = 0
WRITE: Final = 1
CAS: Final = 2
OPEN: Final = NEVER_NS  # as `completed`: it never completed, or its outcome is unknown
NONE: Final = -1
_FIRST: Final = -NEVER_NS
_ROUNDS_MAX: Final = 64  # of doubling: no chain is longer than 2**64
_RING_SHOWN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Registers:
    """Operations on registers, in any order, as columns.

    `seen` is the value that a READ returned or a CAS replaced, `made` the value that a WRITE or a
    CAS wrote. `invoked` and `completed` are moments of one order. Reads of unknown outcome, and
    failed operations, are left out. `initial` is the first value of every register.
    """

    key: Ints
    kind: Kinds
    seen: Ints
    made: Ints
    invoked: Ints
    completed: Ints
    initial: int

    def __len__(self) -> int:
        return len(self.key)

    def take(self, chosen: Ints | Flags) -> "Registers":
        """Return some of the operations."""
        columns = ("key", "kind", "seen", "made", "invoked", "completed")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A register that is not linearizable: why, and the operations that prove it, with roles."""

    key: int
    note: str
    told: tuple[tuple[str, int], ...]


@dataclass(slots=True, kw_only=True)
class _Clusters:
    """One per key and value. `seen` and `made`: of each operation, or NONE."""

    key: Ints
    initial: Ints  # the cluster of the initial value, per existing key
    seen: Ints
    made: Ints

    def __len__(self) -> int:
        return len(self.key)


def repeats_values(registers: Registers) -> Ints:
    """Return the keys with a value that is written twice, or is the initial one: see `wgl`."""
    plain = _plain(registers)
    clusters = _clusters(plain)
    made = clusters.made[plain.kind != READ]
    times = np.bincount(made, minlength=len(clusters))
    times[clusters.initial] += 1
    return np.unique(clusters.key[times > 1])


def matter(registers: Registers) -> Flags:
    """Return which operations can make a difference, also for repeated values.

    A write of unknown outcome whose value was never seen may be removed from any order that holds
    it.
    """
    plain = _plain(registers)
    return _count(plain, _clusters(plain))


def check_zones(registers: Registers) -> list[Finding]:
    """Return the registers that are not linearizable, each once, by the first rule it breaks.

    No key of `repeats_values` may be among them.
    """
    if not len(registers):
        return []
    whole = _plain(registers)
    clusters = _clusters(whole)
    chosen = np.flatnonzero(_count(whole, clusters))
    registers = whole.take(chosen)
    clusters.seen, clusters.made = clusters.seen[chosen], clusters.made[chosen]
    found = _Search(registers, clusters).findings()
    first: dict[int, Finding] = {}
    for finding in found:
        first.setdefault(finding.key, finding)
    return [
        replace(finding, told=tuple((role, int(chosen[op])) for role, op in finding.told))
        for _, finding in sorted(first.items())
    ]


def _plain(registers: Registers) -> Registers:
    """Turn a compare-and-set of a value to itself into a read."""
    idle = (registers.kind == CAS) & (registers.seen == registers.made)
    return replace(registers, kind=np.where(idle, READ, registers.kind).astype(np.int8))


def _clusters(registers: Registers) -> _Clusters:
    kind, keys = registers.kind, np.unique(registers.key)
    saw, wrote = np.flatnonzero(kind != WRITE), np.flatnonzero(kind != READ)
    key = np.concatenate([registers.key[saw], registers.key[wrote], keys])
    value = np.concatenate(
        [registers.seen[saw], registers.made[wrote], np.full(len(keys), registers.initial)]
    )
    order = np.lexsort((value, key))
    key, value = key[order], value[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (key[1:] != key[:-1]) | (value[1:] != value[:-1])
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(new) - 1
    seen, made = np.full(len(registers), NONE), np.full(len(registers), NONE)
    seen[saw] = place[: len(saw)]
    made[wrote] = place[len(saw) : len(saw) + len(wrote)]
    return _Clusters(key=key[new], initial=place[len(saw) + len(wrote) :], seen=seen, made=made)


def _count(registers: Registers, clusters: _Clusters) -> Flags:
    """Return which operations count: certain ones, and writers of a value that a counting one saw.

    A counting compare-and-set of unknown outcome has seen its value, so its writer counts too.
    """
    counts: Flags = registers.completed < OPEN
    waiting = np.flatnonzero(~counts & (registers.kind != READ))
    needed = np.zeros(len(clusters) + 1, np.bool_)  # one more, for NONE
    needed[clusters.seen[counts]] = True
    needed[NONE] = False
    while len(waiting):
        is_needed = needed[clusters.made[waiting]]
        if not is_needed.any():
            break
        counts[waiting[is_needed]] = True
        needed[clusters.seen[waiting[is_needed]]] = True
        needed[NONE] = False
        waiting = waiting[~is_needed]
    return counts


class _Search:
    """The rules of the module's docstring, over all registers at once."""

    def __init__(self, registers: Registers, clusters: _Clusters) -> None:
        self._ops = registers
        self._clusters = clusters
        size = len(clusters)
        made = np.flatnonzero(registers.kind != READ)
        self._writer = np.full(size, NONE)
        self._writer[clusters.made[made]] = made
        self._is_initial = np.zeros(size, np.bool_)
        self._is_initial[clusters.initial] = True
        self._cas = np.flatnonzero(registers.kind == CAS)
        self._parent = np.full(size, NONE)
        self._parent[clusters.made[self._cas]] = clusters.seen[self._cas]
        self._root, self._depth = self._chains()

    def findings(self) -> list[Finding]:
        """Return the findings of each rule; several rules may find the same register."""
        found = [*self._never_written(), *self._replaced_twice(), *self._rings()]
        lower, upper, last = self._bounds()
        found += self._too_early(lower, upper)
        return found + self._zones(upper, last)

    def _chains(self) -> tuple[Ints, Ints]:
        """Return the first cluster of each cluster's chain, and its place in it, by doubling."""
        size = len(self._clusters)
        root = np.where(self._parent != NONE, self._parent, np.arange(size))
        depth = (self._parent != NONE).astype(np.int64)
        for _ in range(_ROUNDS_MAX):
            further = root[root]
            if (further == root).all():
                break
            depth, root = depth + depth[root], further
        return root, depth

    def _never_written(self) -> list[Finding]:
        saw = np.flatnonzero(self._ops.kind != WRITE)
        seen = self._clusters.seen[saw]
        bad = saw[(self._writer[seen] == NONE) & ~self._is_initial[seen]]
        bad = bad[np.argsort(self._ops.invoked[bad], kind="stable")]
        _, first = np.unique(self._ops.key[bad], return_index=True)
        note = "a read returned a value that no operation wrote"
        return [self._finding(op, note, [("seen", op)]) for op in bad[first].tolist()]

    def _replaced_twice(self) -> list[Finding]:
        seen = self._clusters.seen[self._cas]
        order = np.argsort(seen, kind="stable")
        again = np.flatnonzero(seen[order][1:] == seen[order][:-1])
        note = "one value was replaced by two compare-and-sets"
        return [
            self._finding(one, note, [("one", one), ("other", other)])
            for one, other in zip(
                self._cas[order[again]].tolist(), self._cas[order[again + 1]].tolist(), strict=True
            )
        ]

    def _rings(self) -> list[Finding]:
        bad = np.flatnonzero(self._in_ring())
        found = []
        _, first = np.unique(self._clusters.key[bad], return_index=True)
        for cluster in bad[first].tolist():
            at = cluster
            told: list[tuple[str, int]] = []
            while len(told) < _RING_SHOWN and self._parent[at] != NONE:
                told.append(("replaced", int(self._writer[at])))
                at = int(self._parent[at])
                if at == cluster:
                    break
            note = "compare-and-sets go round in a ring"
            found.append(self._finding(told[0][1], note, told))
        return found

    def _in_ring(self) -> Flags:
        rings: Flags = self._parent[self._root] != NONE
        return rings

    def _bounds(self) -> tuple[Ints, Ints, Ints]:
        """Return L and U of each cluster, and the last invocation in it."""
        size, ops, clusters = len(self._clusters), self._ops, self._clusters
        upper, last = np.full(size, OPEN), np.full(size, _FIRST)
        written = self._writer != NONE
        upper[written] = ops.completed[self._writer[written]]
        last[written] = ops.invoked[self._writer[written]]
        lower = last.copy()
        upper[clusters.initial] = _FIRST  # written before all
        reads = np.flatnonzero(ops.kind == READ)
        np.minimum.at(upper, clusters.seen[reads], ops.completed[reads])
        np.maximum.at(last, clusters.seen[reads], ops.invoked[reads])
        made, seen = clusters.made[self._cas], clusters.seen[self._cas]
        lower[made] = np.maximum(lower[made], last[seen])
        return lower, upper, last

    def _too_early(self, lower: Ints, upper: Ints) -> list[Finding]:
        order = np.lexsort((self._depth, self._root))
        root = self._root[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = root[1:] != root[:-1]
        # A running maximum per chain in one pass: each chain's ranks are lifted above the last's.
        chain = np.cumsum(first) - 1
        rank = np.empty(len(order), np.int64)
        by_lower = np.argsort(lower[order], kind="stable")
        rank[by_lower] = np.arange(len(order))
        lift = chain * len(order)
        holder = order[by_lower[np.maximum.accumulate(rank + lift) - lift]]
        bad = np.flatnonzero((lower[holder] > upper[order]) & ~self._in_ring()[order])
        _, one = np.unique(self._clusters.key[order[bad]], return_index=True)
        note = (
            "a value was seen, or its write ended, before an operation that must precede it began"
        )
        found = []
        for late, early in zip(holder[bad[one]].tolist(), order[bad[one]].tolist(), strict=True):
            told = [("ended first", self._first_completed(early)), ("began later", NONE)]
            parent = int(self._parent[late])
            begun = [int(self._writer[late])]
            begun += self._of(self._clusters.seen == parent).tolist() if parent != NONE else []
            begun = [op for op in begun if op != NONE and self._ops.invoked[op] <= lower[late]]
            told[1] = ("began later", max(begun, key=lambda op: int(self._ops.invoked[op])))
            told = [(role, op) for role, op in told if op != NONE]
            found.append(self._finding(told[-1][1], note, told))
        return found

    def _zones(self, upper: Ints, last: Ints) -> list[Finding]:
        """Compare the zones of chains that hold a value which was ever written."""
        order = np.argsort(self._root, kind="stable")
        starts = np.flatnonzero(np.diff(self._root[order], prepend=NONE) != 0)
        chain = self._root[order][starts]
        first_end = np.minimum.reduceat(upper[order], starts)
        last_start = np.maximum.reduceat(last[order], starts)
        is_there = (self._writer != NONE) | self._is_initial
        chosen = np.logical_or.reduceat(is_there[order], starts) & ~self._in_ring()[chain]
        chain, first_end, last_start = chain[chosen], first_end[chosen], last_start[chosen]
        key, is_forward = self._clusters.key[chain], first_end < last_start
        # In the order of beginnings, a forward zone must begin after all forward zones before it
        # have ended, and a backward zone must end after them.
        begin, end = np.minimum(first_end, last_start), np.maximum(first_end, last_start)
        by_begin = np.lexsort((~is_forward, begin, key))
        key, begin, end = key[by_begin], begin[by_begin], end[by_begin]
        is_forward, chain = is_forward[by_begin], chain[by_begin]
        before = np.where(is_forward, np.arange(len(key)), NONE)
        before = np.concatenate([[NONE], np.maximum.accumulate(before)[:-1]])
        exists = (before != NONE) & (key[before] == key)
        bad = exists & (end[before] > np.where(is_forward, begin, end))
        at = np.flatnonzero(bad)
        _, one = np.unique(key[at], return_index=True)
        return [
            self._conflict(int(chain[before[n]]), int(chain[n]), is_inside=not is_forward[n])
            for n in at[one].tolist()
        ]

    def _conflict(self, around: int, other: int, *, is_inside: bool) -> Finding:
        note = "two values must each have been current while the other was"
        if is_inside:
            note = "a value was written and seen while another value must have been current"
        told = []
        for name, root in (("one value", around), ("other value", other)):
            chain = self._root == root
            ops = self._of(chain[self._clusters.made] & (self._clusters.made != NONE))
            ops = np.concatenate(
                [ops, self._of(chain[self._clusters.seen] & (self._clusters.seen != NONE))]
            )
            ends, starts = self._ops.completed[ops], self._ops.invoked[ops]
            first, last = int(ops[ends.argmin()]), int(ops[starts.argmax()])
            if not self._is_initial[chain].any():
                told.append((f"{name}, ended first", first))
            if first != last or self._is_initial[chain].any():
                told.append((f"{name}, began last", last))
        return self._finding(told[-1][1], note, told)

    def _first_completed(self, cluster: int) -> int:
        ops = self._of((self._clusters.made == cluster) | (self._clusters.seen == cluster))
        if self._is_initial[cluster]:
            return NONE
        return int(ops[self._ops.completed[ops].argmin()])

    @staticmethod
    def _of(chosen: Flags) -> Ints:
        return np.flatnonzero(chosen)

    def _finding(self, op: int, note: str, told: list[tuple[str, int]]) -> Finding:
        return Finding(key=int(self._ops.key[op]), note=note, told=tuple(told))
