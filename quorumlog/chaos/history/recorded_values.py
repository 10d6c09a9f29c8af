"""The values of a user's records as whole numbers, for a history.

7, "7" and b"7" are the number 7. Any other text or bytes gets a number of its own, far above the
numbers that users choose.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from quorumlog.chaos.history import checksum_of

_FIRST_DRAWN: Final = 1 << 53
_DIGITS_MAX: Final = 15  # numbers of so many digits are below _FIRST_DRAWN


class ReadRecord(NamedTuple):
    """A record that a client has read. `key`: the topic-partition; `checksum`: 0 if unknown."""

    key: str
    offset: int
    value: object
    checksum: int = 0


class RecordedValues:
    """Numbers for values: equal values have equal numbers. Not thread-safe."""

    def __init__(self) -> None:
        self._numbers: Final[dict[str, int]] = {}

    def number(self, value: object) -> int:
        """Return the number of a value. Raises TypeError for other types."""
        if isinstance(value, bool) or not isinstance(value, int | str | bytes | None):
            raise TypeError(
                f"value {value!r} must be a whole number, text or bytes; set history.value_of "
                "to read the recorded value from a record"
            )
        text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
        is_plain = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
        if is_plain and str(int(text)) == text:
            return int(text)
        return self._numbers.setdefault(text, _FIRST_DRAWN + len(self._numbers))

    def is_plain(self, value: object) -> bool:
        """Return whether a value is itself its number."""
        return self.number(value) < _FIRST_DRAWN


def key_of(where: object) -> str:
    """Return the key of a topic-partition in a history: `orders-0`.

    where: such a key, a topic of the fixture `topic` with one partition, or an object with `topic`
    and `partition`. Raises ValueError or TypeError.
    """
    partitions = getattr(where, "partitions", None)
    if isinstance(where, str):
        if partitions is None:
            return str(where)
        if partitions == 1:
            return f"{where}-0"
        raise ValueError(f"{where} has {partitions} partitions: name one, as topic.key(0)")
    topic, partition = _field(where, "topic"), _field(where, "partition")
    if not isinstance(topic, str) or not isinstance(partition, int):
        raise TypeError(f"{where!r} is no topic-partition: 'orders-0' is one")
    return f"{topic}-{partition}"


def read_records(
    records: object, value_of: Callable[[Any], object] | None = None
) -> Iterator[ReadRecord]:
    """Yield the records that a client has returned, in their order.

    Records are (key, offset, value), or have topic, partition, offset and value as attributes or
    as methods (confluent-kafka); alone, in a list, or in a dict of lists by partition. Raises
    TypeError or ValueError for other arguments.
    """
    for record in _flat(records):
        if isinstance(record, tuple) and len(record) == 3:
            where, offset, value = record
            yield ReadRecord(key_of(where), offset, value)
            continue
        offset, raw = _field(record, "offset"), _field(record, "value")
        if not isinstance(offset, int):
            raise TypeError(f"{record!r} is no record: it has no offset")
        value = raw if value_of is None else value_of(raw)
        yield ReadRecord(key_of(record), offset, value, _checksum(record))


def _checksum(record: object) -> int:
    """Return the checksum of a record's parts; 0 if a client has decoded or left out any of them.

    A timestamp is `timestamp_ms`, or `timestamp`, alone or after its type (confluent-kafka).
    """
    key, headers = _field(record, "key"), _field(record, "headers") or ()
    has_ms = hasattr(record, "timestamp_ms")
    time_ms = _field(record, "timestamp_ms" if has_ms else "timestamp")
    if isinstance(time_ms, tuple):
        time_ms = time_ms[-1]
    if not isinstance(time_ms, int) or not isinstance(key, bytes | None):
        return 0
    if not isinstance(headers, list | tuple) or not all(map(_is_header, headers)):
        return 0
    return checksum_of(key, headers, time_ms)


def _is_header(header: object) -> bool:
    match header:
        case (str(), bytes() | None):
            return True
        case _:
            return False


def _flat(records: object) -> Iterator[object]:
    if records is None:
        return
    if isinstance(records, dict):
        for some in records.values():
            yield from some
    elif isinstance(records, Iterable) and not isinstance(records, tuple):
        yield from records
    else:
        yield records


def _field(record: object, name: str) -> object:
    """Return an attribute, or the result of the method of that name."""
    found = getattr(record, name, None)
    return found() if callable(found) else found
