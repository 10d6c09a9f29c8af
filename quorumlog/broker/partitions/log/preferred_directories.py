"""The log directories that operators have requested for logs not created yet (KIP-113)."""

from typing import Final

from quorumlog.wire.codec.identifiers import TopicPartition

PREFERENCES_MAX: Final = 10_000  # a client may name any partition: the oldest entry is dropped


class PreferredDirectories:
    """Directory ids by partition, in memory only, as in Kafka.

    # DEVIATION: Kafka remembers any number of partitions.
    # docs/decisions/0111-a-replica-moves-as-a-copy-that-takes-its-place.md
    """

    def __init__(self) -> None:
        self._wanted: Final[dict[TopicPartition, str]] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def prefer(self, at: TopicPartition, directory_id: str) -> None:
        """Record the directory in which a log is to be created."""
        self._wanted.pop(at, None)
        self._wanted[at] = directory_id
        if len(self._wanted) > PREFERENCES_MAX:
            del self._wanted[next(iter(self._wanted))]

    def of(self, at: TopicPartition) -> str | None:
        """Return the directory in which a log is to be created; None: any."""
        return self._wanted.get(at)

    def forget(self, at: TopicPartition) -> None:
        """Drop the entry of a log that has been created."""
        self._wanted.pop(at, None)
