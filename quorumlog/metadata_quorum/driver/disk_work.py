"""What the driver does to the disk: effects of the core, one after the other, and flushes.

A write that fsyncs runs in a thread, and the driver waits for it; one that does not, a plain
append of fetched records, is made at once.
"""

import asyncio
from typing import Final, assert_never

from quorumlog.metadata_quorum.core import effects
from quorumlog.metadata_quorum.io.disk_threads import DiskThreads
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.wire.codec.identifiers import Offset

Write = (
    effects.PersistElection
    | effects.AppendLeaderChange
    | effects.AppendFetched
    | effects.TruncateLog
)


class DiskWork:
    """The files of one node's quorum. Errors of the disk (StorageError) end the node."""

    def __init__(self, log: MetadataLog, elections: ElectionStore, threads: DiskThreads) -> None:
        self._log: Final = log
        self._elections: Final = elections
        self._threads: Final = threads

    async def write(self, effect: Write, *, fetched: bytes, brings_epoch: bool) -> None:
        """Change what is on disk. `fetched`: the bytes that an AppendFetched appends.

        `brings_epoch`: they start an epoch, which is fsynced before it is believed.
        """
        if isinstance(effect, effects.AppendFetched) and not brings_epoch:
            self._write(effect, fetched)  # no fsync: a flush follows
        else:
            await self._write_in_thread(effect, fetched)

    async def checkpoint(self, high_watermark: Offset) -> None:
        """Note how far the log is committed: a start then tells damage from a torn tail."""
        await self._threads.run(self._log.checkpoint, high_watermark)

    async def flush(self) -> Offset:
        """Make the log durable; return the offset up to which it is, for certain."""
        return await self._threads.run(self._log.flush)

    async def _write_in_thread(self, effect: Write, fetched: bytes) -> None:
        """Wait for the write, even if cancelled: files are closed after this."""
        writing = asyncio.create_task(self._threads.run(self._write, effect, fetched))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait({writing})
            raise

    def _write(self, effect: Write, fetched: bytes) -> None:
        match effect:
            case effects.PersistElection():
                self._elections.save(
                    Election(
                        leader_epoch=effect.leader_epoch,
                        leader_id=effect.leader_id,
                        voted_id=effect.voted_id,
                        is_new=effect.is_new,
                    )
                )
            case effects.AppendLeaderChange():
                self._log.append_leader_change(effect)
            case effects.AppendFetched():
                self._log.append_fetched(fetched)
            case effects.TruncateLog(end_offset=end_offset):
                self._log.truncate_to(end_offset)
            case _:
                assert_never(effect)
