"""The snapshot download of a follower that is far behind its leader (KIP-630).

The follower fetches chunks into a draft, which is checked before it becomes a snapshot; then the
whole log is dropped, and starts at the snapshot's end. It refuses a snapshot that ends at or below
its high watermark.
"""

from dataclasses import dataclass

from quorumlog.invariants import require
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    SnapshotId,
)
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import Download, Follower
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.error_codes import ErrorCode


@dataclass(eq=False)
class SnapshotDownloads:
    """The rules of a follower that fetches a snapshot.

    A download ends with its leader, epoch or snapshot; the next starts at position 0.
    """

    _state: QuorumState

    def maybe_begin(self, snapshot_id: SnapshotId) -> bool:
        """Begin to download the leader's snapshot; False: it is unusable, or unnecessary."""
        match self._state.role:
            case Follower(download=Download(snapshot_id=known)) if known == snapshot_id:
                return True
            case Follower() as role if self._is_usable(snapshot_id):
                role.download = Download(snapshot_id=snapshot_id)
                return True
            case _:
                return False

    def _is_usable(self, snapshot_id: SnapshotId) -> bool:
        log = self._state.log
        is_possible = 0 < snapshot_id.epoch <= self._state.leader_epoch
        # Until the check of another draft has ended, its file is in use.
        return is_possible and snapshot_id.end_offset > log.high_watermark and not log.is_checking

    def fetch(self, download: Download) -> int:
        """Request the next bytes from the leader; after the last, the request proves we live."""
        state = self._state
        request = FetchSnapshotRequest(
            replica_id=state.node_id,
            current_leader_epoch=state.leader_epoch,
            snapshot_id=download.snapshot_id,
            position=download.position,
            replica_directory_id=state.directory_id,
        )
        return state.send(state.leader_id, request)

    def use(self, event: events.ResponseReceived, response: FetchSnapshotResponse) -> bool:
        """Act on a response; False unless it came from the leader and continues the draft."""
        state = self._state
        if not state.learn_from(response):
            return False
        match state.role:
            case Follower(download=Download() as download) as role if (
                event.source == state.leader_id
            ):
                if self._continues(download, event, response):
                    download.size = response.size
                    self._append(role, download, event.request_id, event.snapshot_bytes)
                    return True
                role.download = None  # the leader has another snapshot by now
                return False
            case _:
                return False

    def _continues(
        self, download: Download, event: events.ResponseReceived, response: FetchSnapshotResponse
    ) -> bool:
        count, size = event.snapshot_bytes, response.size
        is_next = response.position == download.position and download.size in {None, size}
        is_progress = count > 0 or download.position == size > 0
        is_within = download.position + count <= size
        return response.error_code is ErrorCode.NONE and is_next and is_progress and is_within

    def _append(self, role: Follower, download: Download, request_id: int, count: int) -> None:
        state, snapshot_id = self._state, download.snapshot_id
        if count:
            append = effects.AppendSnapshot(
                request_id=request_id, snapshot_id=snapshot_id, position=download.position
            )
            state.emit(append)
            download.position += count
            if self._is_complete(download):
                state.log.is_checking = True
                state.emit(effects.CheckSnapshot(snapshot_id=snapshot_id))
        if state.log.is_checking:  # until the check ends, fetch rarely
            wait_ms = state.settings.controller_quorum_fetch_max_wait_ms
            role.fetch_after_ms = state.now_ms + wait_ms

    def _is_complete(self, download: Download) -> bool:
        return download.position == download.size

    def install(self, snapshot_id: SnapshotId, voters: VoterSet | None) -> None:
        """Make a checked draft the start of the log; all its records are committed.

        `voters`: its voter set; None: kraft.version is 0 at its end.
        """
        state = self._state
        is_newer = snapshot_id.end_offset > state.log.high_watermark
        require(is_newer, "3: committed records are not truncated")
        state.emit(effects.InstallSnapshot(snapshot_id=snapshot_id))
        state.log.install(snapshot_id, voters)
        state.follow_voters()
        state.advance_high_watermark(snapshot_id.end_offset)
