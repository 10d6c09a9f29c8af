"""Snapshots between nodes: the driver's part, chunk by chunk, off the event loop."""

from collections.abc import Callable
from functools import partial
from typing import Final

from quorumlog.invariants import some
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import FetchSnapshotResponse
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.driver.dependencies import Executor, Responded
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.metadata_quorum.log.restored_image import FetchedSnapshot, fetched_snapshot
from quorumlog.metadata_quorum.log.snapshot_files import snapshot_answer

Respond = Callable[[int, FetchSnapshotResponse, bytes | None], None]


class SnapshotTransfer:
    """Reads chunks for followers; writes, checks and installs a leader's snapshot."""

    def __init__(
        self,
        log: MetadataLog,
        committed: CommittedImage,
        executor: Executor,
        feed: Callable[[events.Event], None],
    ) -> None:
        self._log: Final = log
        self._committed: Final = committed
        self._executor: Final = executor
        self._feed: Final = feed
        self._checked: ClusterImage | None = None  # of the draft that is whole

    def answer(self, effect: effects.AnswerFetchSnapshot, respond: Respond) -> None:
        """Read a chunk for a follower, in the background; then respond."""
        read_bytes, count = self._log.snapshots.read_bytes, self._log.chunk_bytes_max
        read = partial(read_bytes, effect.snapshot_id, effect.position, count)
        self._executor.run(
            read, lambda found: respond(effect.request_id, *snapshot_answer(effect, found))
        )

    def append_work(
        self, effect: effects.AppendSnapshot, fetched: Responded | None
    ) -> Callable[[], None]:
        """Return the work that writes one chunk."""
        content = some(fetched, "bytes of a snapshot come beside a response").records
        append = self._log.snapshots.append_fetched
        return partial(append, effect.snapshot_id, effect.position, content)

    def check(self, effect: effects.CheckSnapshot) -> None:
        """Read a fetched snapshot as a whole, in the background."""

        def checked(fetched: FetchedSnapshot | None) -> None:
            self._checked = None if fetched is None else fetched.image
            event = events.SnapshotChecked(
                snapshot_id=effect.snapshot_id,
                is_whole=fetched is not None,
                voters=None if fetched is None else fetched.voters,
            )
            self._feed(event)

        read = partial(fetched_snapshot, self._log.snapshots, effect.snapshot_id)
        self._executor.run(read, checked)

    def install_work(self, effect: effects.InstallSnapshot) -> Callable[[], None]:
        """Return the work that installs the snapshot, with the image from its check."""
        checked, self._checked = self._checked, None
        image = some(checked, "a snapshot is checked before it is installed")

        def work() -> None:
            self._log.install_fetched(effect.snapshot_id)
            self._committed.install(image)

        return work
