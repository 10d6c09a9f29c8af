"""The rules that a world with brokers runs on: a mutant replaces one of them."""

from dataclasses import dataclass, replace
from typing import Final

from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.core.partition_invariants import Marks, PartitionInvariants
from quorumlog.broker.partitions.log.log_flusher import LogFlusher
from quorumlog.chaos.simulation.worlds.storage_mutants import SOUND_STORAGE, Storage
from quorumlog.metadata_quorum.controller.controller import Controller


class Unchecked(PartitionInvariants):
    """Checks nothing: the outcome must show the damage."""

    def check(self, before: Marks, *, truncates: bool = False, cuts: bool = False) -> None:
        """Check nothing."""


UNCHECKED_RULES: Final = replace(KAFKA_RULES, invariants=Unchecked)


def telling_one_at_once(rules: PartitionRules) -> PartitionRules:
    """Return the rules of a broker whose replicas hear of an image one after the other."""

    class OneAtOnce(rules.untold_news):  # type: ignore[name-defined,misc]  # a class by value
        at_once = 1

    return replace(rules, untold_news=OneAtOnce)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRules:
    """The defaults are the real ones."""

    partition: PartitionRules = KAFKA_RULES
    controller: type[Controller] = Controller
    storage: Storage = SOUND_STORAGE
    flusher: type[LogFlusher] = LogFlusher
