"""The file `quorum-state`: the leader that this node follows, and its vote.

JSON, Kafka's field names, `data_version` 1, with `currentVoters` as in version 0. The file must be
durable before any node learns of the vote: a lost vote may be given twice. Sources:
KIP-595; KAFKA-15412 (an unknown version is refused).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from quorumlog.metadata_quorum.core.messages import EPOCH_MAX
from quorumlog.storage.errors import CorruptCheckpoint, storage_error
from quorumlog.storage.io.disk import Disk, read_file, write_file_durably
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch

FILE_NAME: Final = "quorum-state"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """The durable state of a node's elections.

    `is_new`: there was no file, or the voter has not caught up since: it must not vote yet.
    `voted_directory_id`: that of the candidate; None: it named none (KIP-853).
    `was_voter`: this node was a voter of a set in the log: it does not add itself again.
    `voters`: the voters of its quorum; None: a former version did not write them.
    """

    leader_epoch: Epoch = Epoch(0)
    leader_id: BrokerId = NO_LEADER
    voted_id: BrokerId = NO_LEADER
    voted_directory_id: str | None = None
    was_voter: bool = False
    is_new: bool = False
    voters: tuple[BrokerId, ...] | None = None


class ElectionStore:
    """The election state of one node, on disk."""

    def __init__(self, disk: Disk, directory: str, voters: Iterable[BrokerId] = ()) -> None:
        """`voters` are written with every election."""
        self._disk = disk
        self._voters = tuple(sorted(voters))
        self._path = f"{directory}/{FILE_NAME}"

    def load(self) -> Election:
        """Return the saved election, or a new one if there is none. Raises CorruptCheckpoint."""
        if not self._disk.exists(self._path):
            return Election(is_new=True)
        try:
            state = json.loads(read_file(self._disk, self._path))
            if state["data_version"] != _VERSION:
                raise CorruptCheckpoint(
                    f"{self._path} is of version {state['data_version']}, this is {_VERSION}"
                )
            return decode_election(state)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpoint(
                f"{self._path} is not whole ({type(error).__name__}: {error}): this node does not "
                "know its last vote. Move this file away, and start the node: it votes again when "
                "it has caught up with a leader. Keep the log beside it: others may rely on what "
                "is in it"
            ) from error

    def save(self, election: Election) -> None:
        """Replace the saved election. It is durable on return. Raises StorageError."""
        state: dict[str, object] = {
            "leaderId": election.leader_id,
            "leaderEpoch": election.leader_epoch,
            "votedId": election.voted_id,
            "isNew": election.is_new,
            "data_version": _VERSION,
        }
        if election.voted_directory_id is not None:
            state["votedDirectoryId"] = election.voted_directory_id
        if election.was_voter:
            state["wasVoter"] = True
        if self._voters:
            state["currentVoters"] = [{"voterId": voter} for voter in self._voters]
        try:
            write_file_durably(self._disk, self._path, json.dumps(state).encode())
        except OSError as error:
            raise storage_error(f"cannot write {self._path}: {error}", error) from error


def decode_election(state: Mapping[str, Any]) -> Election:
    """Read the fields of the file. Raises KeyError, TypeError or ValueError unless it is whole."""
    return Election(
        leader_epoch=_epoch(int(state["leaderEpoch"])),
        leader_id=BrokerId(int(state["leaderId"])),
        voted_id=BrokerId(int(state["votedId"])),
        voted_directory_id=_text(state.get("votedDirectoryId")),
        was_voter=bool(state.get("wasVoter", False)),
        is_new=bool(state.get("isNew", False)),
        voters=_voters(state.get("currentVoters")),
    )


def _voters(entries: list[dict[str, int]] | None) -> tuple[BrokerId, ...] | None:
    if entries is None:
        return None
    return tuple(sorted(BrokerId(int(entry["voterId"])) for entry in entries))


def _text(value: object) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError(f"votedDirectoryId {value!r}")
    return value


def _epoch(number: int) -> Epoch:
    if not 0 <= number <= EPOCH_MAX:
        raise ValueError(f"leaderEpoch {number}")
    return Epoch(number)
