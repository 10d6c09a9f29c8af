"""The control records of a changed voter set, in Kafka's bytes (KIP-853).

A batch of the log or of a snapshot contains Voters (type 6), behind KRaftVersion (type 5) if that
changes. Malformed records are refused: a node would count other voters than the rest of the quorum.
"""

import struct
from collections.abc import Sequence
from typing import Final

from quorumlog.addresses import address_text, host_and_port
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core.voter_sets import Voter, VoterSet
from quorumlog.storage.io.checkpoints import uuid_from_text, uuid_to_text
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from quorumlog.wire.codec.messages import voters_record
from quorumlog.wire.codec.messages.k_raft_version_record import KRaftVersionRecord
from quorumlog.wire.codec.messages.voters_record import VotersRecord
from quorumlog.wire.codec.records import Record
from quorumlog.wire.codec.schemas import decode_message, encode_message

KRAFT_VERSION_MAX: Final = 1
_KEY: Final = struct.Struct(">hh")  # version, type
_KRAFT_VERSION_TYPE: Final = 5
_VOTERS_TYPE: Final = 6
VOTER_TYPES: Final = (_KRAFT_VERSION_TYPE, _VOTERS_TYPE)
"""The types of the records in the batch that sets kraft.version, and in a snapshot."""
_LISTENER: Final = "CONTROLLER"


def control_key(kind: int) -> bytes:
    """Return the key of a control record of this type."""
    return _KEY.pack(0, kind)


def encode_voters(
    voters: VoterSet, *, sets_kraft_version: bool
) -> list[tuple[bytes | None, bytes]]:
    """Return key and value of each record. Raises ValueError if a directory id is not a UUID."""
    pairs: list[tuple[bytes | None, bytes]] = []
    if sets_kraft_version:
        level = KRaftVersionRecord(version=0, k_raft_version=KRAFT_VERSION_MAX)
        pairs.append((control_key(_KRAFT_VERSION_TYPE), _encoded(level)))
    record = VotersRecord(version=0, voters=[_encode_voter(voter) for voter in voters.voters])
    pairs.append((control_key(_VOTERS_TYPE), _encoded(record)))
    return pairs


def check_readable(pairs: Sequence[tuple[bytes | None, bytes]]) -> None:
    """Raise InvariantViolation if nodes, this one included, could not decode these records."""
    try:
        decode_voters(
            [Record(offset=0, timestamp_ms=0, key=key, value=value) for key, value in pairs]
        )
    except CorruptBatch as error:
        raise InvariantViolation(f"voters are appended as they are read: {error}") from error


def decode_voters(records: Sequence[Record]) -> tuple[tuple[Offset, VoterSet], ...]:
    """Return (offset, voters) of each Voters record in a control batch. Raises CorruptBatch."""
    found: list[tuple[Offset, VoterSet]] = []
    for record in records:
        kind = control_type(record)
        if kind not in VOTER_TYPES:
            continue
        try:
            if kind == _VOTERS_TYPE:
                found.append((Offset(record.offset), _decode_voters(record.value or b"")))
            else:
                _check_level(record.value or b"")
        except ValueError as error:
            raise CorruptBatch(f"the voters at {record.offset}: {error}") from error
    return tuple(found)


def control_type(record: Record) -> int:
    """Return the type of a control record. Raises CorruptBatch."""
    key = record.key or b""
    if len(key) < _KEY.size:
        raise CorruptBatch(f"a control record with a key of {len(key)} bytes")
    return int(_KEY.unpack_from(key)[1])


def _encoded(message: VotersRecord | KRaftVersionRecord) -> bytes:
    return b"".join(encode_message(message, 0))


def _encode_voter(voter: Voter) -> voters_record.Voter:
    host, port = host_and_port(voter.address) if voter.address else ("", 0)
    endpoint = voters_record.Endpoint(name=_LISTENER, host=host, port=port)
    return voters_record.Voter(
        voter_id=voter.voter_id,
        voter_directory_id=uuid_from_text(voter.directory_id),
        endpoints=[endpoint] if voter.address else [],
        k_raft_version_feature=voters_record.KRaftVersionFeature(
            min_supported_version=0, max_supported_version=KRAFT_VERSION_MAX
        ),
    )


def _decode_voters(value: bytes) -> VoterSet:
    record = decode_message(VotersRecord, 0, value)
    if not record.voters:
        raise ValueError("there is no voter")
    return VoterSet(tuple(map(_decode_voter, record.voters)))


def _decode_voter(voter: voters_record.Voter) -> Voter:
    if voter.voter_id < 0:
        raise ValueError(f"voter {voter.voter_id}")
    address = next((address_text(one.host, one.port) for one in voter.endpoints), "")
    return Voter(
        voter_id=BrokerId(voter.voter_id),
        directory_id=uuid_to_text(voter.voter_directory_id),
        address=address,
    )


def _check_level(value: bytes) -> None:
    level = decode_message(KRaftVersionRecord, 0, value).k_raft_version
    if not 0 <= level <= KRAFT_VERSION_MAX:
        raise ValueError(f"kraft.version {level}, where {KRAFT_VERSION_MAX} is the newest")
