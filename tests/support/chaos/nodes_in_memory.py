"""A back end of three nodes in memory, which has all operations and effects."""

import asyncio
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.chaos.faults.fault import UNDONE_BY
from quorumlog.chaos.faults.links import EFFECTS, Effect, Link, LinkRule


class NodesInMemory:
    """`performed`, `rules`: the acts of the nemesis; `roles`: the nodes that hold each role."""

    name = "nodes in memory"
    operations = frozenset(
        {*UNDONE_BY, *UNDONE_BY.values(), "wipe", "lose_records"}
        | {"damage", "copy_directories", "put_back", "put_back_one", "fail_flush"}
        | {"reassign", "grow", "delete_records", "alter_log_dirs", "raise_kraft_version"}
    )
    effects: frozenset[type[Effect]] = EFFECTS
    node_ids = (1, 2, 3)
    racks = MappingProxyType({"a": (1, 3), "b": (2,)})

    def __init__(self) -> None:
        self.is_running = {1, 2, 3}
        self.paused = set[int]()
        self.lagging = set[int]()  # the nodes that have not caught up
        self.start_takes_s = 0.0
        self.changed: Callable[[], object] = lambda: None  # called when a rule comes or goes
        self.performed: list[tuple[str, tuple[int, ...]]] = []
        self.rules: dict[str, LinkRule] = {}
        self.imposed: list[str] = []  # rules in force, and those that were
        self.asked_for: dict[str, str] = {}  # the argument of each operation of an administrator
        self.met: dict[str, int] = {}  # how often each operation that is counted was met
        self.roles: dict[str, list[int]] = {"partition-leader": [1], "metadata-leader": [2]}

    def times_met(self, operation: str, node_ids: Sequence[int]) -> int | None:
        del node_ids
        return self.met.get(operation)

    async def tallies(self) -> dict[str, dict[str, Any]]:
        """Return one answered request of each rule: all are met."""
        return {rule_id: {"matched": 1, "answered": 1, "seen": []} for rule_id in self.imposed}

    async def running(self) -> tuple[int, ...]:
        return tuple(sorted(self.is_running))

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> str | None:
        del amount
        self.performed.append((operation, tuple(node_ids)))
        for node_id in node_ids:
            needs_none = operation in {"start", "damage", "put_back", "put_back_one"}
            if not needs_none and node_id not in self.is_running:
                raise NodeUnavailable(f"node {node_id} does not run")
            match operation:
                case "kill" | "stop":
                    self.is_running.discard(node_id)
                    self.paused.discard(node_id)
                case "start":
                    await self._start(node_id)
                case "pause":
                    self.paused.add(node_id)
                case "resume":
                    self.paused.discard(node_id)
                case _:
                    pass
        return self.asked_for.get(operation)

    async def _start(self, node_id: int) -> None:
        self.is_running.add(node_id)
        await asyncio.sleep(self.start_takes_s)
        if node_id not in self.is_running:
            raise NodeUnavailable(f"node {node_id} was killed")

    def has_links(self, links: Sequence[Link]) -> bool:
        return bool(links)

    async def impose(self, rule: LinkRule) -> None:
        self.rules[rule.id] = rule
        self.imposed.append(rule.id)
        self.changed()

    async def lift(self, rule_id: str) -> None:
        self.rules.pop(rule_id, None)
        self.changed()

    def why_not(self, fault: str) -> str:
        del fault
        return ""

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        del topic
        return self.roles.get(role, [])

    async def behind(self, topic: str) -> Sequence[int]:
        del topic
        return sorted(self.lagging)

    def last_words(self, node_id: int) -> str:
        return f"node {node_id} ended"

    async def restore(self) -> None:
        pass
