"""Changes that an administrator makes while clients work: topics, replicas, throttles, quotas."""

from typing import ClassVar

from quorumlog.chaos.faults.fault import ALL, StepFault, named, ranged


@named(
    "admin_churn",
    "topics are created, grown, configured, moved and deleted, leaders elected, continuously",
    targets=(ALL,),
)
class AdminChurn(StepFault):
    """About `per_s` changes a second to topics of its own; all partitions may move."""

    breaks: ClassVar[str] = "churn"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (3_000, 8_000)
    per_s: int = ranged(1, 1_000, default=10, is_amount=True)


@named("reassign", "a partition moves to other brokers, or back")
class Reassign(StepFault):
    """Which partition, and where to, is drawn when the fault is due (KIP-455).

    It goes on by itself: nothing is taken back.
    """

    breaks: ClassVar[str] = "reassign"


@named("grow", "the topic of the workload gets another partition", targets=(ALL,))
class Grow(StepFault):
    """A few at most (KIP-195). Partitions stay: nothing is taken back."""

    breaks: ClassVar[str] = "grow"


@named(
    "throttle",
    "brokers throttle the replication of replicas outside the ISR (KIP-73)",
    targets=(ALL,),
)
class Throttle(StepFault):
    """All replicas of all topics, on both sides, get `bytes_per_s` on each broker."""

    breaks: ClassVar[str] = "throttle"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (2_000, 6_000)
    bytes_per_s: int = ranged(1, 1_000_000_000, default=10_000, is_amount=True)


@named("quota", "clients get small quotas, which are removed later (KIP-13)", targets=(ALL,))
class Quota(StepFault):
    """Which clients is drawn when the fault is due: a user, a client id, or a default.

    They read and write `bytes_per_s`, and use at most 5 % of the time of each broker.
    """

    breaks: ClassVar[str] = "limit"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (2_000, 6_000)
    bytes_per_s: int = ranged(1, 1_000_000_000, default=20_000, is_amount=True)


@named(
    "delete_records",
    "a separate topic receives records, and DeleteRecords removes those below a random offset",
    targets=(ALL,),
)
class DeleteRecords(StepFault):
    """Mostly within a batch: new replicas then copy a log that starts there (KIP-107).

    Deleted records stay deleted: nothing is healed.
    """

    breaks: ClassVar[str] = "delete_records"


@named("alter_log_dirs", "a replica moves to another log directory of its broker, or stays")
class AlterLogDirs(StepFault):
    """Which broker, which replica and which directory is drawn when the fault is due (KIP-113).

    It goes on by itself: nothing is taken back.
    """

    breaks: ClassVar[str] = "alter_log_dirs"
