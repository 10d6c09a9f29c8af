"""Checks of the types and ranges of users' arguments, before an operation begins."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar

from quorumlog.client.records import GroupMetadata, OffsetAndMetadata
from quorumlog.wire.codec.identifiers import TopicPartition

K = TypeVar("K")
T = TypeVar("T")

INT64_MAX: Final = 2**63 - 1
EARLIEST_MEANING: Final = -3  # the smallest special timestamp (KIP-734)


def checked_names(names: Iterable[str], what: str = "names") -> list[str]:
    """Return the names as a list. Raises TypeError, also for a single str instead of a list."""
    if isinstance(names, str):
        raise TypeError(f"must be a list of {what}: [{names!r}]")
    listed = list(_iterable(names, f"a list of {what}"))
    for name in listed:
        if not isinstance(name, str):
            raise TypeError(f"must be a list of {what}, each a str, not {name!r}")
    return listed


def checked_all(given: Iterable[T], kind: type[T], name: str) -> list[T]:
    """Return `given` as a list. Raises TypeError for an item that is not a `kind`."""
    listed = list(_iterable(given, f"a list of {name}"))
    for one in listed:
        if not isinstance(one, kind) or (kind is int and isinstance(one, bool)):
            raise TypeError(f"must be a list of {name}, not of {one!r}")
    return listed


def checked_mapping(given: Mapping[K, T], what: str) -> Mapping[K, T]:
    """Return `given`. Raises TypeError unless it is a Mapping, described by `what` in the error."""
    if not isinstance(given, Mapping):
        raise TypeError(f"must be a dict of {what}, not {given!r}")
    return given


def checked_callback(callback: object) -> None:
    """Raise TypeError unless `callback` can be called, and runs without an `await`."""
    if not callable(callback) or iscoroutinefunction(callback):
        raise TypeError(f"must be a synchronous function, not {callback!r}")


def checked_partition(partition: TopicPartition) -> TopicPartition:
    """Return `partition`. Raises TypeError for wrong types, ValueError for a negative partition."""
    if not isinstance(partition, TopicPartition):
        raise TypeError(f"must be a TopicPartition, not {partition!r}")
    if not isinstance(partition.topic, str) or not _is_int(partition.partition):
        raise TypeError(f"a TopicPartition is a str and an int, not {tuple(partition)!r}")
    if partition.partition < 0:
        raise ValueError(f"a partition is not negative: {partition.partition}")
    return partition


def checked_partitions(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the TopicPartitions in order, without duplicates. Raises TypeError or ValueError."""
    if isinstance(partitions, TopicPartition):
        raise TypeError(f"must be a list of TopicPartitions: [{partitions!r}]")
    listed = _iterable(partitions, "a list of TopicPartitions")
    return list(dict.fromkeys(checked_partition(one) for one in listed))


def checked_offset(offset: int) -> int:
    """Return `offset`. Raises TypeError or ValueError if no record can have it."""
    if not _is_int(offset):
        raise TypeError(f"an offset is an int, not {offset!r}")
    if not 0 <= offset <= INT64_MAX:
        raise ValueError(f"an offset is 0 to 2**63 - 1: {offset}")
    return offset


def checked_places(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of a commit as OffsetAndMetadata. Raises TypeError or ValueError."""
    places = {}
    for partition, place in _mapping(offsets, "offsets").items():
        if not isinstance(place, OffsetAndMetadata):
            place = OffsetAndMetadata(place)  # noqa: PLW2901 - the same offset, with its defaults
        offset, leader_epoch, metadata = place
        checked_offset(offset)
        if not _is_int(leader_epoch) or not isinstance(metadata, str):
            raise TypeError(f"{place!r}: leader_epoch is an int, metadata a str")
        places[checked_partition(partition)] = place
    return places


def checked_group_metadata(group: GroupMetadata) -> GroupMetadata:
    """Return `group`. Raises TypeError unless it is a GroupMetadata."""
    if not isinstance(group, GroupMetadata):
        raise TypeError(f"must be consumer.group_metadata(), not {group!r}")
    return group


def checked_timestamps(timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the timestamps (ms) of a lookup as a dict. Raises TypeError or ValueError."""
    for partition, timestamp_ms in _mapping(timestamps, "times in ms").items():
        checked_partition(partition)
        if not _is_int(timestamp_ms):
            raise TypeError(f"{partition}: a time is an int of milliseconds, not {timestamp_ms!r}")
        if not EARLIEST_MEANING <= timestamp_ms <= INT64_MAX:
            raise ValueError(f"{partition}: a time is milliseconds since 1970: {timestamp_ms}")
    return dict(timestamps)


def checked_time(time: datetime | int) -> int:
    """Return the ms since 1970. Raises TypeError or ValueError, also without a time zone."""
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise ValueError(f"{time!r} has no time zone: datetime(..., tzinfo=...)")
        time = round(time.timestamp() * 1000)
    if not _is_int(time):
        raise TypeError(f"a time is a datetime or an int of milliseconds, not {time!r}")
    if not 0 <= time <= INT64_MAX:
        raise ValueError(f"a time is milliseconds since 1970: {time}")
    return time


def checked_number(number: int, name: str) -> int:
    """Return `number`. Raises TypeError unless it is an int; True and False are none."""
    if not _is_int(number):
        raise TypeError(f"{name} is an int, not {number!r}")
    return number


def checked_max_records(max_records: int) -> int:
    """Return `max_records`. Raises TypeError or ValueError unless it is an int from 0 on."""
    if not _is_int(max_records):
        raise TypeError(f"max_records is an int, not {max_records!r}")
    if max_records < 0:
        raise ValueError(f"max_records must not be negative: {max_records}")
    return max_records


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _iterable(value: Any, what: str) -> Iterable[Any]:
    if not isinstance(value, Iterable):
        raise TypeError(f"must be {what}, not {value!r}")
    return value


def _mapping(value: Any, what: str) -> Mapping[Any, Any]:
    return checked_mapping(value, f"TopicPartition to {what}")


def checked_subscription(
    topics: Iterable[str], pattern: str | None, group_protocol: str
) -> list[str]:
    """Return the topics as a list. Raises TypeError or ValueError, also for a bad pattern."""
    if pattern is None:
        return checked_names(topics, "topics")
    if not isinstance(pattern, str):
        raise TypeError(f"a pattern is a str, not {pattern!r}")
    if not pattern:
        raise ValueError("an empty pattern matches no topic")
    if group_protocol == "classic":  # else a broker compiles it
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return checked_names(topics, "topics")


def code_of(codes: Mapping[str, int], word: str, what: str) -> int:
    """Return the protocol's code of a word. Raises ValueError for an unknown `what`."""
    if word not in codes:
        raise ValueError(f"{what} {word!r} must be one of {', '.join(map(repr, codes))}")
    return codes[word]


def word_of(codes: Mapping[str, int], code: int) -> str:
    """Return the word of a code; the code as text if a newer broker sent an unknown code."""
    return next((word for word, known in codes.items() if known == code), str(code))
