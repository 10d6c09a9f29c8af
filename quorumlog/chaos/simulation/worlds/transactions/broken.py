"""The rules of the world: a mutant replaces one of them."""

from dataclasses import dataclass
from typing import Any

from quorumlog.broker.transactions.core.rules import SOUND, TransactionRules
from quorumlog.chaos.simulation.kernel.mutants import with_broken
from quorumlog.chaos.simulation.worlds.brokers.rules import UNCHECKED_RULES, BrokenRules
from quorumlog.chaos.simulation.worlds.storage_mutants import Storage
from quorumlog.storage.io.log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenTransactions:
    """The rules of coordinators and of replicas. The defaults are the real rules."""

    coordinator: TransactionRules = SOUND
    brokers: BrokenRules = BrokenRules()  # noqa: RUF009 - it is frozen


def broken_coordinator(*broken: type[Any]) -> BrokenTransactions:
    """Return rules in which each class replaces its base class in a coordinator."""
    return BrokenTransactions(coordinator=with_broken(SOUND, *broken))


def broken_replica(broken: type[Any]) -> BrokenTransactions:
    """Return rules in which a class replaces its base class in a replica, or the log."""
    if issubclass(broken, Log):
        return BrokenTransactions(brokers=BrokenRules(storage=Storage(log=broken)))
    return BrokenTransactions(brokers=BrokenRules(partition=with_broken(UNCHECKED_RULES, broken)))
