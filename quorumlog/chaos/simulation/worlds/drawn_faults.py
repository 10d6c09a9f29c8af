"""The kinds of faults that a swarm draws for each simulated world."""

from typing import Final

from quorumlog.chaos.faults import leadership, machines, network, reassign
from quorumlog.chaos.faults.fault import Fault
from quorumlog.chaos.faults.kill import Kill
from quorumlog.chaos.faults.pause import Pause

# The order counts: each kind of fault draws in its turn.
BROKER_FAULTS: Final[tuple[type[Fault], ...]] = (
    *network.FAULTS, Kill, machines.PowerLoss, Pause, machines.ClockDrift, *leadership.FAULTS,
)  # fmt: skip
PARTITION_FAULTS: Final = (*BROKER_FAULTS, machines.PowerLossOfAll)
QUORUM_FAULTS: Final[tuple[type[Fault], ...]] = (
    *network.FAULTS, Kill, machines.PowerLoss, Pause, machines.ClockDrift, machines.SlowDisk,
    machines.FsyncError, *leadership.FAULTS, machines.InterruptedWrite, machines.DiskStall,
)  # fmt: skip
COMPOSED_FAULTS: Final = (*BROKER_FAULTS, *reassign.FAULTS)
LOG_FAULTS: Final[tuple[type[Fault], ...]] = (
    Kill, machines.PowerLoss, Pause, machines.FsyncError, machines.InterruptedWrite,
)  # fmt: skip
