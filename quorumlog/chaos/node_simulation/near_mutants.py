"""Planted bugs in reads from followers (KIP-392), which no simulated world has."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.data_path import ReadEnd
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.following import Followership
from quorumlog.broker.partitions.core.serving import Serving
from quorumlog.chaos.simulation.kernel.mutants import Mutants, with_broken
from quorumlog.chaos.simulation.worlds.brokers.rules import UNCHECKED_RULES
from quorumlog.node.substitutes import Substitutes
from quorumlog.wire.codec.identifiers import Offset


def _with_rules(broken: type[Any]) -> Substitutes:
    return Substitutes(partition_rules=with_broken(UNCHECKED_RULES, broken))


NEAR: Final = Mutants(_with_rules)


@NEAR.breaks("a follower serves uncommitted records to consumers (KIP-392)")
class _FollowersServeTheirLogEnd(Serving):
    def read_end(self, end: ReadEnd) -> Offset:
        state = self._state
        return super().read_end(end) if state.is_leader else state.log_end_offset


@NEAR.breaks("a follower takes its log end offset for its high watermark, and serves up to it")
class _FollowersCommitWhatTheyHold(Followership):
    def leader_answered(self, event: events.LeaderAnswered) -> Sequence[Effect]:
        return super().leader_answered(replace(event, high_watermark=event.log_end_offset))


@NEAR.breaks("a follower never receives the high watermark, and serves no records")
class _FollowersNeverLearnOfCommits(Followership):
    def leader_answered(self, event: events.LeaderAnswered) -> Sequence[Effect]:
        return super().leader_answered(replace(event, high_watermark=Offset(0)))
