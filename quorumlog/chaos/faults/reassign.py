"""reassign: a partition begins to move to other brokers, or goes back."""

from typing import Final

from quorumlog.chaos.faults.fault import Fault, named


@named("reassign", "a partition moves to other brokers, or goes back to the ones before")
class Reassign(Fault):
    """Which partition, and where to, is drawn when the fault is due (KIP-455)."""


FAULTS: Final = (Reassign,)
