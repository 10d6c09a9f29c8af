"""The file `quorum-state`: whom this node follows, and to whom it gave its vote.

JSON, Kafka's field names, `data_version` 1. What was saved must be durable before anybody hears
of it: a vote that is forgotten may be given twice. Sources: KIP-595; KAFKA-15412 (an unknown
version is refused).
"""

import json
from dataclasses import dataclass
from typing import Final

from quorumlog.metadata_quorum.core.messages import EPOCH_MAX
from quorumlog.storage.errors import CorruptCheckpoint, StorageError
from quorumlog.storage.io.disk import Disk, read_file, write_file_durably
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch

FILE_NAME: Final = "quorum-state"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """What a node must not forget of an election."""

    leader_epoch: Epoch = Epoch(0)
    leader_id: BrokerId = NO_LEADER
    voted_id: BrokerId = NO_LEADER


class ElectionStore:
    """The election state of one node, on disk."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"

    def load(self) -> Election:
        """Return what was saved last; all defaults if nothing was. Raises CorruptCheckpoint."""
        if not self._disk.exists(self._path):
            return Election()
        try:
            state = json.loads(read_file(self._disk, self._path))
            if state["data_version"] != _VERSION:
                raise CorruptCheckpoint(
                    f"{self._path} is of version {state['data_version']}, this is {_VERSION}"
                )
            return Election(
                leader_epoch=_epoch(int(state["leaderEpoch"])),
                leader_id=BrokerId(int(state["leaderId"])),
                voted_id=BrokerId(int(state["votedId"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpoint(
                f"{self._path} is not whole ({error!r}): this node cannot tell whom it voted for. "
                "Once the other voters have a leader, move this file away, and start the node; "
                "keep the log beside it: others may rely on what is in it"
            ) from error

    def save(self, election: Election) -> None:
        """Replace what was saved. It is durable on return. Raises StorageError."""
        state = {
            "leaderId": election.leader_id,
            "leaderEpoch": election.leader_epoch,
            "votedId": election.voted_id,
            "data_version": _VERSION,
        }
        try:
            write_file_durably(self._disk, self._path, json.dumps(state).encode())
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error}") from error


def _epoch(number: int) -> Epoch:
    if not 0 <= number <= EPOCH_MAX:
        raise ValueError(f"leaderEpoch {number}")
    return Epoch(number)
