"""The rules of a world with brokers: a mutant replaces one of them."""

from dataclasses import dataclass, replace
from typing import Final

from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.core.partition_invariants import Marks, PartitionInvariants
from quorumlog.broker.partitions.log.log_flusher import LogFlusher
from quorumlog.chaos.simulation.worlds.storage_mutants import SOUND_STORAGE, Storage
from quorumlog.metadata_quorum.controller.controller import Controller


class Unchecked(PartitionInvariants):
    """Invariants without checks: the oracle must find the damage."""

    def check(self, before: Marks, *, truncates: bool = False, cuts: bool = False) -> None:
        """Skip the checks."""


UNCHECKED_RULES: Final = replace(KAFKA_RULES, invariants=Unchecked)


def telling_one_at_once(rules: PartitionRules) -> PartitionRules:
    """Return rules that apply an image to one replica for each turn of the event loop."""

    class OneAtOnce(rules.untold_news):  # type: ignore[name-defined,misc]  # a class by value
        at_once = 1

    return replace(rules, untold_news=OneAtOnce)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRules:
    """A set of rules. The defaults are the real rules."""

    partition: PartitionRules = KAFKA_RULES
    controller: type[Controller] = Controller
    storage: Storage = SOUND_STORAGE
    flusher: type[LogFlusher] = LogFlusher
