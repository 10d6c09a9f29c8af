"""The rules that a world with brokers runs on: a mutant replaces one of them."""

from dataclasses import dataclass, replace
from typing import Final

from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.core.partition_invariants import Marks, PartitionInvariants
from quorumlog.chaos.simulation.worlds.storage_mutants import SOUND_STORAGE, Storage
from quorumlog.metadata_quorum.controller.controller import Controller


class Unchecked(PartitionInvariants):
    """Checks nothing: the outcome must show the damage."""

    def check(self, before: Marks, *, truncates: bool = False) -> None:
        """Check nothing."""


UNCHECKED_RULES: Final = replace(KAFKA_RULES, invariants=Unchecked)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRules:
    """The defaults are the real ones."""

    partition: PartitionRules = KAFKA_RULES
    controller: type[Controller] = Controller
    storage: Storage = SOUND_STORAGE
