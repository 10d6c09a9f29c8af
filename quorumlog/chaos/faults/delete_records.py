"""delete_records: a topic beside that of the workload loses its first records, to any offset."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import ALL, AnyStep, Scene, StepFault, named


@named(
    "delete_records",
    "a topic of its own gets batches of records, and loses those below any offset",
    targets=(ALL,),
)
class DeleteRecords(StepFault):
    """Mostly within a batch: replicas that begin then find a log that starts there (KIP-107).

    What is gone is gone: nothing is taken back.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"delete_records"})
    breaks: ClassVar[str] = "delete_records"

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Do nothing."""
        del scene
        return ()


FAULTS: Final = (DeleteRecords,)
