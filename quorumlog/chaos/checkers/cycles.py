"""Cycles between transactions: transactions that must precede each other have no valid order.

An edge states why one transaction precedes another: WW, it wrote the version before the other's;
WR, the other read its version; RW, it read the version before the other's (an anti-dependency);
RT, it had ended before the other began, which only strict serializability respects. Names are
Adya's: G0, a cycle of WW alone; G1c, of WW and WR, with a WR; G-single, with one RW; G2, with
several. A cycle that needs an RT has Elle's suffix `-realtime`. Snapshot isolation allows the
cycles in which two RW follow each other; a cycle with several RW of which no two do is
G-nonadjacent. Sources: Adya, Weak Consistency (1999); Fekete and others, Making Snapshot Isolation
Serializable (2005); Kingsbury and Alvaro, Elle (2020); Tarjan's algorithm for strongly connected
components, without recursion.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

WW: Final = 1
WR: Final = 2
RW: Final = 4
RT: Final = 8
_WORDS: Final = {WW: "wrote before", WR: "was read by", RW: "read before", RT: "ended before"}
_DEPENDENCIES: Final = WW | WR | RW
REAL_TIME: Final = "-realtime"
Successors = Callable[[int], Iterable[int]]
_STARTS_MAX: Final = 256  # edges of a component from which the search for a short cycle starts


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of a cycle: source, reason, target; `about` names the object and the versions."""

    source: int
    kind: int
    target: int
    about: str

    def __str__(self) -> str:
        began = " began" if self.kind == RT else ""
        return f"{_WORDS[self.kind]} the next{began}{self.about and ': '}{self.about}"


@dataclass(frozen=True, slots=True)
class Cycle:
    """A short cycle of a component, with the name of its kind."""

    name: str
    steps: tuple[Step, ...]


@dataclass(slots=True)
class Graph:
    """Transactions by number, and edges; the first reason of an edge stays.

    after: RT edges, to the transactions that began after one had ended, without those that follow
        from others.
    """

    edges: dict[int, dict[int, dict[int, str]]] = field(default_factory=dict)
    after: dict[int, list[int]] = field(default_factory=dict)

    def add(self, source: int, kind: int, target: int, about: str) -> None:
        """Add an edge, unless its source is its target."""
        if source != target:
            self.edges.setdefault(source, {}).setdefault(target, {}).setdefault(kind, about)

    def successors(self, node: int, kinds: int) -> Iterator[int]:
        """Yield the targets of the edges of `kinds` from `node`."""
        for target, labels in self.edges.get(node, {}).items():
            if any(kind & kinds for kind in labels):
                yield target
        if kinds & RT:
            yield from self.after.get(node, ())

    def step(self, source: int, target: int, kinds: int) -> Step:
        """Return an existing edge of one of `kinds` with its reason."""
        labels = self.edges.get(source, {}).get(target, {})
        for kind in (WW, WR, RW):
            if kind & kinds and kind in labels:
                return Step(source, kind, target, labels[kind])
        return Step(source, RT, target, "")


def find_cycles(graph: Graph) -> list[Cycle]:
    """Return one cycle for each component of each kind that has a cycle, strongest kinds first."""
    cycles = _cycles_without_rw(graph)
    for component in components(graph, _DEPENDENCIES):
        single = _shortest(graph, component, "G-single", RW, WW | WR)
        cycle = single or _shortest(graph, component, "G2", RW, _DEPENDENCIES)
        cycles += [cycle] if cycle is not None else []
    return cycles + _real_time_cycles(graph, cycles) if graph.after else cycles


def find_cycles_of_snapshots(graph: Graph) -> list[Cycle]:
    """Return the cycles that snapshot isolation forbids, and G2 of components without any.

    In a second graph each transaction has two nodes: one that an RW enters, and one for all other
    edges. RW leaves the latter alone, so the cycles there are those in which no two RW follow.
    """
    cycles = _cycles_without_rw(graph)
    doubled = Graph()
    for source, targets in graph.edges.items():
        for target, labels in targets.items():
            for kind, about in labels.items():
                doubled.add(2 * source, kind, 2 * target + (kind == RW), about)
                if kind != RW:
                    doubled.add(2 * source + 1, kind, 2 * target, about)
    for component in components(doubled, _DEPENDENCIES):
        inside = {node // 2 for node in component}
        if any(_lies_in(one, inside, _DEPENDENCIES) for one in cycles):
            continue
        single = _shortest(doubled, component, "G-single", RW, WW | WR)
        cycle = single or _shortest(doubled, component, "G-nonadjacent", RW, _DEPENDENCIES)
        if cycle is not None:
            steps = (Step(s.source // 2, s.kind, s.target // 2, s.about) for s in cycle.steps)
            cycles.append(Cycle(cycle.name, tuple(steps)))
    for component in components(graph, _DEPENDENCIES):
        if not any(_lies_in(one, {*component}, _DEPENDENCIES) for one in cycles):
            skew = _shortest(graph, component, "G2", RW, _DEPENDENCIES)
            cycles += [skew] if skew is not None else []
    return cycles


def _cycles_without_rw(graph: Graph) -> list[Cycle]:
    found = [_shortest(graph, one, "G0", WW, WW) for one in components(graph, WW)]
    found += [_shortest(graph, one, "G1c", WR, WW | WR) for one in components(graph, WW | WR)]
    return [cycle for cycle in found if cycle is not None]


def _real_time_cycles(graph: Graph, found: list[Cycle]) -> list[Cycle]:
    """Return a cycle for each component with RT edges that has no cycle of `found`, or of another.

    So each of them needs an RT, and its kind is the strongest of the component.
    """
    cycles: list[Cycle] = []
    for name, kinds in (("G0", WW), ("G1c", WW | WR), ("", _DEPENDENCIES)):
        for component in components(graph, kinds | RT):
            inside = {*component}
            if any(_lies_in(one, inside, kinds | RT) for one in (*found, *cycles)):
                continue
            if name:
                cycle = _shortest(graph, component, name + REAL_TIME, RT, kinds | RT)
            else:
                single = _shortest(graph, component, "G-single" + REAL_TIME, RW, WW | WR | RT)
                cycle = single or _shortest(graph, component, "G2" + REAL_TIME, RW, kinds | RT)
            if cycle is not None:
                cycles.append(cycle)
    return cycles


def _lies_in(cycle: Cycle, inside: set[int], kinds: int) -> bool:
    return all(step.source in inside and step.kind & kinds for step in cycle.steps)


def _shortest(graph: Graph, component: list[int], name: str, first: int, rest: int) -> Cycle | None:
    """Return a short cycle of one edge of kind `first`, and others of kinds `rest`."""
    inside, best = frozenset(component), None
    for source, target in _edges(graph, component, inside, first):
        path = _path(graph, target, source, rest, inside)
        if path and (best is None or len(path) < len(best)):
            best = path
    if best is None:
        return None
    around = [best[-1], *best]
    steps = []
    for place, (source, target) in enumerate(pairwise(around)):
        steps.append(graph.step(source, target, first if place == 0 else rest))
    return Cycle(name, tuple(steps))


def _edges(
    graph: Graph, component: list[int], inside: frozenset[int], kind: int
) -> Iterator[tuple[int, int]]:
    left = _STARTS_MAX
    for source in component:
        for target in graph.successors(source, kind):
            if target in inside:
                yield source, target
                left -= 1
                if not left:
                    return


def _path(
    graph: Graph, start: int, goal: int, kinds: int, inside: frozenset[int]
) -> list[int] | None:
    """Return the shortest path of nodes, by breadth-first search."""
    came_from: dict[int, int | None] = {start: None}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        if node == goal:
            path: list[int] = []
            at: int | None = node
            while at is not None:
                path.append(at)
                at = came_from[at]
            return path[::-1]
        for target in graph.successors(node, kinds):
            if target in inside and target not in came_from:
                came_from[target] = node
                waiting.append(target)
    return None


def components(graph: Graph, kinds: int) -> list[list[int]]:
    """Return the strongly connected components of more than one node, each sorted."""
    state = _Tarjan()
    for root in sorted(graph.edges):  # no cycle has RT edges alone
        if root not in state.number:
            state.walk(root, lambda node: graph.successors(node, kinds))
    return sorted(state.found)


@dataclass(slots=True)
class _Tarjan:
    number: dict[int, int] = field(default_factory=dict)
    lowest: dict[int, int] = field(default_factory=dict)
    stack: list[int] = field(default_factory=list)
    on_stack: set[int] = field(default_factory=set)
    found: list[list[int]] = field(default_factory=list)

    def walk(self, root: int, successors: Successors) -> None:
        """Visit all nodes that can be reached from `root`, depth first."""
        self._open(root)
        path = [(root, iter(successors(root)))]
        while path:
            node, following = path[-1]
            for target in following:
                if target not in self.number:
                    self._open(target)
                    path.append((target, iter(successors(target))))
                    break
                if target in self.on_stack:
                    self.lowest[node] = min(self.lowest[node], self.number[target])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    self.lowest[above] = min(self.lowest[above], self.lowest[node])
                if self.lowest[node] == self.number[node]:
                    self._close(node)

    def _open(self, node: int) -> None:
        self.number[node] = self.lowest[node] = len(self.number)
        self.stack.append(node)
        self.on_stack.add(node)

    def _close(self, root: int) -> None:
        component = []
        while True:
            node = self.stack.pop()
            self.on_stack.discard(node)
            component.append(node)
            if node == root:
                break
        if len(component) > 1:
            self.found.append(sorted(component))
