"""Two clusters of a run as one back end: the source of a mirror, and its target.

Their nodes have different ids, so each operation goes to the cluster of its nodes. A rule on links
holds in each cluster for its own links: no node sends to a node of the other cluster. A role has
its holders in both clusters; in the target, the topic is the copy.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from quorumlog.chaos.back_ends.back_end import BackEnd, NodeUnavailable, Tallies
from quorumlog.chaos.faults.links import CLIENTS, Effect, Link, LinkRule
from quorumlog.chaos.faults.node_groups import Racks

FIRST_TARGET_ID: Final = 101
"""The id of the target's first node."""


class TwoClusters:
    """A back end of two: the nodes of `source` come first."""

    name = "local processes of two clusters"

    def __init__(self, source: BackEnd, target: BackEnd, *, copy: str) -> None:
        """`copy`: the name of the workload's topic in the target."""
        self.both: Final = (source, target)
        self._copy: Final = copy
        self.effects: Final[frozenset[type[Effect]]] = source.effects & target.effects
        self.operations: Final = source.operations & target.operations

    def why_not(self, fault: str) -> str:
        """See BackEnd."""
        return self.both[0].why_not(fault) or self.both[1].why_not(fault)

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes, running or not."""
        return self.both[0].node_ids + self.both[1].node_ids

    @property
    def racks(self) -> Racks:
        """The nodes of each rack, of both clusters."""
        source, target = (side.racks for side in self.both)
        names = dict.fromkeys((*source, *target))
        return {name: (*source.get(name, ()), *target.get(name, ())) for name in names}

    async def running(self) -> tuple[int, ...]:
        """Return the nodes whose process exists now; a paused one counts."""
        source, target = self.both
        return await source.running() + await target.running()

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> str | None:
        """Do the operation in the clusters of `node_ids`, all of it before an error is raised."""
        wanted = {*node_ids}
        parts = [
            (side, [one for one in side.node_ids if one in wanted])
            for side in self.both
            if wanted & {*side.node_ids}
        ]
        tried = await asyncio.gather(
            *(side.perform(operation, own, amount) for side, own in parts), return_exceptions=True
        )
        errors = [one for one in tried if isinstance(one, BaseException)]
        if not errors:
            return ", ".join(one for one in tried if isinstance(one, str)) or None
        others = [one for one in errors if not isinstance(one, NodeUnavailable)]
        if others:
            raise others[0]
        failed: list[int] = []
        for (_, own), one in zip(parts, tried, strict=True):
            if isinstance(one, NodeUnavailable):
                failed += one.node_ids or own
        raise NodeUnavailable(str(errors[0]), tuple(failed)) from errors[0]

    def times_met(self, operation: str, node_ids: Sequence[int]) -> int | None:
        """Return how often the operation has affected the nodes; None: it is not counted."""
        counts = [
            count
            for side in self.both
            if (own := [one for one in side.node_ids if one in node_ids])
            and (count := side.times_met(operation, own)) is not None
        ]
        return sum(counts) if counts else None

    def has_links(self, links: Sequence[Link]) -> bool:
        """Return whether nodes send on any of these links."""
        return any(own and side.has_links(own) for side, own in self._divided(links))

    def _divided(self, links: Sequence[Link]) -> list[tuple[BackEnd, tuple[Link, ...]]]:
        divided = []
        for side in self.both:
            parties = {CLIENTS, *map(str, side.node_ids)}
            own = (one for one in links if {one.source, one.destination} <= parties)
            divided.append((side, tuple(own)))
        return divided

    async def impose(self, rule: LinkRule) -> None:
        """Impose a rule in each cluster that has some of its links. Raises BackEndFailed."""
        for side, own in self._divided(rule.links):
            if own:
                await side.impose(replace(rule, links=own))

    async def lift(self, rule_id: str) -> None:
        """Lift a rule. Raises BackEndFailed."""
        for side in self.both:
            await side.lift(rule_id)

    async def tallies(self) -> Tallies:
        """Return the counts of the rules; of a rule in both clusters, those of the target."""
        return {**await self.both[0].tallies(), **await self.both[1].tallies()}

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        """Return the nodes that hold a role in either cluster."""
        source, target = self.both
        return [*await source.holders(role, topic), *await target.holders(role, self._copy)]

    async def behind(self, topic: str) -> Sequence[int]:
        """Return the nodes with a replica outside its ISR."""
        source, target = self.both
        return [*await source.behind(topic), *await target.behind(self._copy)]

    def last_words(self, node_id: int) -> str:
        """Return the last line of the node's output."""
        return next(
            (side.last_words(node_id) for side in self.both if node_id in side.node_ids), ""
        )

    async def restore(self) -> None:
        """End the faults that outlive their steps in both clusters."""
        for side in self.both:
            await side.restore()
