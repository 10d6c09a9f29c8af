"""Changes that an administrator makes while clients work: topics, replicas, throttles."""

from collections.abc import Sequence
from typing import ClassVar

from quorumlog.chaos.faults.fault import ALL, AnyStep, Scene, Step, StepFault, named, ranged


@named(
    "admin_churn",
    "topics are created, grown, configured, moved and deleted, leaders elected, continuously",
    targets=(ALL,),
)
class AdminChurn(StepFault):
    """About `per_s` changes a second to topics of its own; all partitions may move."""

    needs: ClassVar[frozenset[str]] = frozenset({"churn", "calm"})
    breaks: ClassVar[str] = "churn"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (3_000, 8_000)
    per_s: int = ranged(1, 1_000, default=10)

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Begin to change."""
        return (Step(operation="churn", node_ids=scene.victims, amount=self.per_s),)


@named("reassign", "a partition moves to other brokers, or back")
class Reassign(StepFault):
    """Which partition, and where to, is drawn when the fault is due (KIP-455).

    It goes on by itself: nothing is taken back.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"reassign"})
    breaks: ClassVar[str] = "reassign"


@named("grow", "the topic of the workload gets another partition", targets=(ALL,))
class Grow(StepFault):
    """A few at most (KIP-195). Partitions stay: nothing is taken back."""

    needs: ClassVar[frozenset[str]] = frozenset({"grow"})
    breaks: ClassVar[str] = "grow"


@named(
    "throttle",
    "brokers throttle the replication of replicas outside the ISR (KIP-73)",
    targets=(ALL,),
)
class Throttle(StepFault):
    """All replicas of all topics, on both sides, get `bytes_per_s` on each broker."""

    needs: ClassVar[frozenset[str]] = frozenset({"throttle", "release"})
    breaks: ClassVar[str] = "throttle"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (2_000, 6_000)
    bytes_per_s: int = ranged(1, 1_000_000_000, default=10_000)

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Begin to throttle."""
        return (Step(operation="throttle", node_ids=scene.victims, amount=self.bytes_per_s),)


@named(
    "delete_records",
    "a separate topic receives records, and DeleteRecords removes those below a random offset",
    targets=(ALL,),
)
class DeleteRecords(StepFault):
    """Mostly within a batch: new replicas then copy a log that starts there (KIP-107).

    Deleted records stay deleted: nothing is healed.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"delete_records"})
    breaks: ClassVar[str] = "delete_records"


@named("alter_log_dirs", "a replica moves to another log directory of its broker, or stays")
class AlterLogDirs(StepFault):
    """Which broker, which replica and which directory is drawn when the fault is due (KIP-113).

    It goes on by itself: nothing is taken back.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"alter_log_dirs"})
    breaks: ClassVar[str] = "alter_log_dirs"
