"""The file `quorum-state`: the leader that this node follows, and its vote.

Four rows of JSON: two saves, each in two copies. The newest save counts. A row has Kafka's field
names, `data_version` 1, with `currentVoters` as in version 0; the number of the save; a checksum. A
save must be durable before any node receives the vote: a lost vote may be given twice. Sources:
KIP-595; KAFKA-15412 (an unknown version is refused).
"""

import json
import logging
import zlib
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from quorumlog.metadata_quorum.core.messages import EPOCH_MAX
from quorumlog.storage.errors import CorruptCheckpoint, storage_error, storage_errors
from quorumlog.storage.io.disk import Disk, read_file, write_file_durably
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch

FILE_NAME: Final = "quorum-state"
_VERSION: Final = 1
_COPIES: Final = 2  # of each save
_ROWS: Final = 2 * _COPIES
_SECTOR_BYTES: Final = 512  # a row has whole sectors: no write touches those of another save
_CHECKSUM: Final = b', "checksum": "%08x"}'
_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """The durable state of a node's elections.

    `is_new`: there was no file, or the voter has not caught up since: it must not vote yet.
    `voted_directory_id`: the candidate's directory id; None: its request had none (KIP-853).
    `was_voter`: this node was a voter of a committed set: it does not add itself again.
    `voters`: the voters of its quorum; None: a former version did not write them.
    """

    leader_epoch: Epoch = Epoch(0)
    leader_id: BrokerId = NO_LEADER
    voted_id: BrokerId = NO_LEADER
    voted_directory_id: str | None = None
    was_voter: bool = False
    is_new: bool = False
    voters: tuple[BrokerId, ...] | None = None


class Saved(NamedTuple):
    """The last save in a file. `row_bytes`: 0 if the next save must write the whole file."""

    fields: Mapping[str, Any]
    number: int = 0
    row_bytes: int = 0


class ElectionStore:
    """The election state of one node, on disk.

    A save overwrites the older save in the file, and takes one fsync. A power loss may tear it at
    any byte: then the other save counts, and no node has received the torn vote. Each save has two
    copies, so that one damaged byte cannot pass for a torn save: the other copy is whole, and
    counts.
    """

    def __init__(self, disk: Disk, directory: str, voters: Iterable[BrokerId] = ()) -> None:
        """`voters`: the configured voters, written with every election."""
        self._disk = disk
        self._voters = tuple(sorted(voters))
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self._number = self._row_bytes = 0  # of the last save; 0 bytes: write the file anew

    def load(self) -> Election:
        """Return the saved election, or a new one if there is no file.

        The returned election is durable. Raises CorruptCheckpoint; StorageError.
        """
        if not self._disk.exists(self._path):
            return Election(is_new=True)
        try:
            self._fsync()  # a process may have ended between a write and its fsync
            last = decode_file(read_file(self._disk, self._path))
            version = last.fields["data_version"]
            if version != _VERSION:
                raise CorruptCheckpoint(f"{self._path} is of version {version}, this is {_VERSION}")
            election = decode_election(last.fields)
        except OSError as error:
            raise storage_error(f"cannot read {self._path}: {error}", error) from error
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpoint(
                f"{self._path} is damaged ({type(error).__name__}: {error}): this node has lost "
                "its last vote. Move this file away, and start the node: it votes again after it "
                "has caught up with a leader. Keep the log beside it: other nodes may rely on its "
                "records"
            ) from error
        self._number, self._row_bytes = last.number, last.row_bytes
        return election

    def save(self, election: Election) -> None:
        """Replace the saved election. It is durable on return. Raises StorageError."""
        number, row_bytes = self._number + 1, self._row_bytes
        line = _line(election, self._voters, number)
        self._row_bytes = 0
        with storage_errors(f"cannot write {self._path}"):
            if len(line) < row_bytes:
                self._overwrite(_row(line, row_bytes) * _COPIES, number)
            else:
                row_bytes = _SECTOR_BYTES * (len(line) // _SECTOR_BYTES + 1)
                write_file_durably(self._disk, self._path, _row(line, row_bytes) * _ROWS)
        self._number, self._row_bytes = number, row_bytes

    def _overwrite(self, rows: bytes, number: int) -> None:
        position = number % 2 * len(rows)
        with closing(self._disk.open(self._path)) as file:
            try:
                file.overwrite(rows, position)
                file.fsync()
            except OSError:
                with suppress(OSError):  # a restart would load rows that may not be durable
                    file.overwrite(bytes(len(rows)), position)
                raise

    def _fsync(self) -> None:
        with closing(self._disk.open(self._path)) as file:
            file.fsync()
        self._disk.fsync_dir(self._directory)


def decode_file(content: bytes) -> Saved:
    """Return the last save. Raises KeyError, TypeError or ValueError unless the file is whole.

    A single line without a checksum was written by a former release, or by a person.
    """
    if len(content.splitlines()) == 1 and b'"checksum"' not in content:
        return Saved(_json(content))
    row_bytes, rest = divmod(len(content), _ROWS)
    if rest or row_bytes % _SECTOR_BYTES:
        raise ValueError(f"{len(content)} bytes")
    rows = [content[start : start + row_bytes] for start in range(0, len(content), row_bytes or 1)]
    whole = [_json(row) for row in rows if _is_whole(row)]
    if not whole:
        raise ValueError("no row has the checksum of its bytes")
    if len(whole) < _ROWS:
        _logger.warning(
            "%d of %d rows of %s are damaged, or a write was torn: the newest of the others counts",
            _ROWS - len(whole), _ROWS, FILE_NAME,
        )  # fmt: skip
    last = max(whole, key=lambda fields: int(fields["save"]))
    return Saved(last, int(last["save"]), row_bytes if len(whole) == _ROWS else 0)


def _line(election: Election, voters: tuple[BrokerId, ...], number: int) -> bytes:
    state: dict[str, object] = {
        "leaderId": election.leader_id,
        "leaderEpoch": election.leader_epoch,
        "votedId": election.voted_id,
        "isNew": election.is_new,
        "data_version": _VERSION,
        "save": number,
    }
    if election.voted_directory_id is not None:
        state["votedDirectoryId"] = election.voted_directory_id
    if election.was_voter:
        state["wasVoter"] = True
    if voters:
        state["currentVoters"] = [{"voterId": voter} for voter in voters]
    return _with_checksum(json.dumps(state).encode()[:-1])


def _with_checksum(fields: bytes) -> bytes:
    return fields + _CHECKSUM % zlib.crc32(fields)


def _row(line: bytes, row_bytes: int) -> bytes:
    return line.ljust(row_bytes - 1) + b"\n"


def _is_whole(row: bytes) -> bool:
    fields = row.rstrip()[: -len(_CHECKSUM % 0)]
    return row == _row(_with_checksum(fields), len(row))


def _json(line: bytes) -> Mapping[str, Any]:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise TypeError(f"{type(fields).__name__} instead of an object")
    return fields


def decode_election(state: Mapping[str, Any]) -> Election:
    """Decode the fields of a save. Raises KeyError, TypeError or ValueError unless it is whole."""
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
