"""The kinds of faults that a swarm draws for each simulated world."""

from typing import Final

from quorumlog.chaos.faults import disks, machines
from quorumlog.chaos.faults.admin import Reassign
from quorumlog.chaos.faults.fault import Fault
from quorumlog.chaos.faults.partitions import OneWayCut, Partition
from quorumlog.chaos.faults.processes import Kill, Pause
from quorumlog.chaos.faults.quorum import FalseNotice, Resign
from quorumlog.chaos.faults.traffic import Delay, Duplication, Loss, Reorder

_ON_MESSAGES: Final = (Loss, Duplication, Delay, Reorder, Partition, OneWayCut)
# The order counts: each kind of fault draws in its turn.
BROKER_FAULTS: Final[tuple[type[Fault], ...]] = (
    *_ON_MESSAGES, Kill, machines.PowerLoss, Pause, machines.ClockDrift, Resign, FalseNotice,
)  # fmt: skip
PARTITION_FAULTS: Final = (*BROKER_FAULTS, machines.PowerLossOfAll)
QUORUM_FAULTS: Final[tuple[type[Fault], ...]] = (
    *_ON_MESSAGES, Kill, machines.PowerLoss, Pause, machines.ClockDrift, disks.SlowDisk,
    disks.FsyncError, Resign, FalseNotice, machines.InterruptedWrite, disks.DiskStall,
)  # fmt: skip
COMPOSED_FAULTS: Final = (*BROKER_FAULTS, Reassign)
LOG_FAULTS: Final[tuple[type[Fault], ...]] = (
    Kill, machines.PowerLoss, Pause, disks.FsyncError, machines.InterruptedWrite,
)  # fmt: skip
