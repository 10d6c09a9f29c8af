"""Fields of Kafka requests in their bytes, read without decoding the requests. Pure.

A frame begins with its length of four bytes; a head is the begin of a frame. Source: Kafka's
protocol guide.
"""

from struct import Struct as Packer
from typing import Final

from quorumlog.wire.codec.message import ZERO_UUID
from quorumlog.wire.codec.schemas import APIS

Entry = tuple[bytes, int]  # the name or the id of a topic, and a partition

_HEADER: Final = Packer(">ihhih")  # length, API key, version, correlation id, size of client_id
_ACKS_AND_TIMEOUT: Final = Packer(">hi")
_FLEXIBLE_SINCE: Final = 9  # of Produce
_FETCH: Final = 1  # an API key
_PARTITION_BYTES: Final = 4
BY_NAME_UNTIL: Final = 12  # the last version of Produce, and of Fetch, that names topics
SESSIONS_SINCE: Final = 7
_SESSION: Final = Packer(">ii")  # id, epoch
WITHOUT_SESSION: Final = 0, -1
_NO_SESSION: Final = _SESSION.pack(*WITHOUT_SESSION)
_BEFORE_SESSION: Final = 13  # bytes: max_wait_ms, min_bytes, max_bytes, isolation_level
_REPLICA_ID_BYTES: Final = 4
_REPLICA_ID_UNTIL: Final = 14  # the last version of Fetch that begins with a replica id
_FETCH_FLEXIBLE_SINCE: Final = 12


def client_of(head: bytes | memoryview) -> str | None:
    """Return the client id in the first bytes of a request; None: they end too early."""
    if len(head) < _HEADER.size:
        return None
    *_, size = _HEADER.unpack_from(head)
    name = bytes(head[_HEADER.size : _HEADER.size + max(size, 0)])
    return name.decode("utf-8", "replace") if len(name) == max(size, 0) else None


def session_at(frame: bytes) -> int:
    """Return the place of the session's id in a Fetch; 0: the fields must be decoded."""
    _, _, version, _, size = _HEADER.unpack_from(frame)
    place = _HEADER.size + max(size, 0)
    if version < SESSIONS_SINCE or version not in APIS[1].versions:
        return 0
    if version >= _FETCH_FLEXIBLE_SINCE:
        if frame[place : place + 1] != b"\0":  # the tagged fields of the header: none are defined
            return 0
        place += 1
    place += _BEFORE_SESSION + (_REPLICA_ID_BYTES if version <= _REPLICA_ID_UNTIL else 0)
    return place if len(frame) >= place + _SESSION.size else 0


def session_epoch(frame: bytes, session_at: int) -> int:
    """Return the epoch of the session of a Fetch. KIP-227."""
    epoch: int = _SESSION.unpack_from(frame, session_at)[1]
    return epoch


def without_session(frame: bytes | memoryview, session_at: int) -> bytes:
    """Return a full Fetch that opens no session. KIP-227."""
    return b"".join((frame[:session_at], _NO_SESSION, frame[session_at + _SESSION.size :]))


def has_reply(head: bytes) -> bool:
    """Return False for a Produce with acks=0, by the first bytes of a request.

    Also returns True if the bytes end too early.
    """
    place = _acks_at(head)
    return not place or head[place : place + 2] != b"\0\0"


def only_entry(head: bytes) -> tuple[Entry, int] | None:
    """Return the only entry of a Produce or a Fetch, and the place behind its partition.

    None: it names several or none, or the bytes end too early. Without the correlation id, the
    bytes up to that place decide the entry: equal bytes of the same API and version have the same.
    """
    if len(head) < _HEADER.size:
        return None
    key, version = int.from_bytes(head[4:6], "big"), int.from_bytes(head[6:8], "big")
    is_fetch = key == _FETCH
    place = session_at(head) if is_fetch else _acks_at(head)
    if not place:
        return None
    place += _SESSION.size if is_fetch else _ACKS_AND_TIMEOUT.size
    is_flexible = version >= (_FETCH_FLEXIBLE_SINCE if is_fetch else _FLEXIBLE_SINCE)
    counts, one = (1, b"\2") if is_flexible else (4, b"\0\0\0\1")
    if head[place : place + counts] != one:
        return None
    place += counts
    if version <= BY_NAME_UNTIL:
        end = _string_end(head, place, is_flexible=is_flexible)
        start = place + (2 if not is_flexible or head[place] >= 0x80 else 1)
    else:
        start, end = place, place + len(ZERO_UUID)
    behind = end + counts + _PARTITION_BYTES
    if not end or head[end : end + counts] != one or behind > len(head):
        return None
    index = int.from_bytes(head[end + counts : behind], "big", signed=True)
    return (head[start:end], index), behind


def _acks_at(head: bytes) -> int:
    """Return the place of the acks of a Produce; 0: it is none, or the bytes end too early."""
    if len(head) < _HEADER.size:
        return 0
    _, key, version, _, size = _HEADER.unpack_from(head)
    if key != 0 or version not in APIS[0].versions:
        return 0
    place = _HEADER.size + max(size, 0)
    if version >= _FLEXIBLE_SINCE:
        if head[place : place + 1] != b"\0":  # the tagged fields of the header: none are defined
            return 0
        place += 1
    place = _string_end(head, place, is_flexible=version >= _FLEXIBLE_SINCE)
    return place if place and len(head) >= place + _ACKS_AND_TIMEOUT.size else 0


def _string_end(head: bytes, place: int, *, is_flexible: bool) -> int:
    """Return the end of a string, which may be null; 0: the bytes end too early. KIP-482."""
    if not is_flexible:
        return place + 2 + max(int.from_bytes(head[place : place + 2], "big", signed=True), 0)
    length = shift = 0
    while place < len(head):
        byte = head[place]
        length |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if byte < 0x80:
            return place + max(length - 1, 0)
    return 0
