"""A back end that only records its commands."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.chaos.faults.links import EFFECTS, Link, LinkRule

NOTHING: Final[Mapping[str, Any]] = {"matched": 0, "answered": 0, "seen": []}


class FakeBackEnd:
    """Three nodes. `roles`: the nodes of each role; `refuses`: nodes that ignore commands."""

    name = "fake"
    operations = frozenset({"kill", "start", "pause", "resume"})
    effects: Final = EFFECTS
    node_ids = (1, 2, 3)
    racks = MappingProxyType({"a": (1, 3), "b": (2,)})

    def __init__(self, roles: Mapping[tuple[str, str], Sequence[int]]) -> None:
        self.roles = dict(roles)
        self.refuses: set[int] = set()
        self.dead: set[int] = set()
        self.done: list[tuple[str, tuple[int, ...]]] = []
        self.amounts: dict[int, int] = {}  # by node, of the last operation
        self.rules: dict[str, LinkRule] = {}
        self.imposed: list[str] = []  # rules in force, and those that were
        self.counts: dict[str, dict[str, Any]] = {}  # of the rules that met requests
        self.silent: set[str] = set()  # links on which nothing is ever sent

    async def running(self) -> tuple[int, ...]:
        return tuple(node_id for node_id in self.node_ids if node_id not in self.dead)

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> None:
        if self.refuses.intersection(node_ids):
            raise NodeUnavailable(f"{operation}: no")
        await asyncio.sleep(0)  # another verb would get its turn here
        self.done.append((operation, tuple(node_ids)))
        self.amounts.update(dict.fromkeys(node_ids, amount))
        if operation == "kill":
            self.dead.update(node_ids)
        if operation == "start":
            self.dead.difference_update(node_ids)

    def times_met(self, operation: str, node_ids: Sequence[int]) -> None:
        del operation, node_ids

    def has_links(self, links: Sequence[Link]) -> bool:
        return any(str(link) not in self.silent for link in links)

    async def impose(self, rule: LinkRule) -> None:
        self.rules[rule.id] = rule
        self.imposed.append(rule.id)

    async def lift(self, rule_id: str) -> None:
        del self.rules[rule_id]

    async def tallies(self) -> dict[str, dict[str, Any]]:
        return {rule_id: self.counts.get(rule_id, dict(NOTHING)) for rule_id in self.imposed}

    def why_not(self, fault: str) -> str:
        return ""

    async def behind(self, topic: str) -> Sequence[int]:
        del topic
        return []

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        return self.roles.get((role, topic), ())

    def last_words(self, node_id: int) -> str:
        return ""

    async def restore(self) -> None:
        return
