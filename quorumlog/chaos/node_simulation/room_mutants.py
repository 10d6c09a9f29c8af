"""Planted bugs of voters with a full disk, which no simulated world has."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.brokers.rules import UNCHECKED_RULES
from quorumlog.metadata_quorum.driver.driver import Driver
from quorumlog.metadata_quorum.driver.patience import PatientExecutor, attempt
from quorumlog.metadata_quorum.io.parts import QuorumParts
from quorumlog.node.substitutes import Substitutes
from quorumlog.storage.errors import DiskExhausted

T = TypeVar("T")


def _with(broken: type[Any]) -> Substitutes:
    return Substitutes(partition_rules=UNCHECKED_RULES, quorum=QuorumParts(driver=broken))


ROOM: Final = Mutants(_with)


@ROOM.breaks("a vote or metadata record that does not fit on the disk counts as written")
class _TakesRefusedWritesForDone(Driver):
    def _write(self, work: Callable[[], object], name: str) -> None:
        super()._write(lambda: str(attempt(work)), name)


class _Impatient(PatientExecutor):
    def run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        self.executor.run(work, done)

    def run_again(self, _: DiskExhausted, work: Callable[[], T], done: Callable[[T], None]) -> None:
        self.run(work, done)


@ROOM.breaks("a full disk ends a voter's process")
class _FullDisksEndVoters(Driver):
    patience = _Impatient
