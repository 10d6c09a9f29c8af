"""Records that a user gives as columns: sequences, or Arrow arrays."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from quorumlog.client.core.batch import check_timestamp, checked_record_size
from quorumlog.client.records import Headers

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
RecordFields = tuple[int, bytes | None, bytes | None, Headers]
"""timestamp_ms, key, value and headers."""

HeaderPairs = Sequence[tuple[str, bytes | None]]


class ArrowColumn(Protocol):
    """A pyarrow Array or ChunkedArray."""

    def to_pylist(self) -> list[Any]:
        """Return the values as Python objects."""


Column = Iterable[T_co] | ArrowColumn
"""The values of one field, in the order of the records."""


def records_of(
    values: Column[Any],
    keys: Column[Any] | None,
    headers: Column[HeaderPairs | None] | None,
    timestamps_ms: Column[int] | None,
    *,
    now_ms: int,
) -> tuple[list[RecordFields], list[int]]:
    """Return the records and their `checked_record_size`.

    Raises as `rows_of`, and TypeError if a key, a value or a header is illegal.
    """
    records = rows_of(values, keys, headers, timestamps_ms, now_ms=now_ms)
    sizes = [checked_record_size(key, value, own) for _, key, value, own in records]
    return records, sizes


def rows_of(
    values: Column[Any],
    keys: Column[Any] | None,
    headers: Column[HeaderPairs | None] | None,
    timestamps_ms: Column[int] | None,
    *,
    now_ms: int,
) -> list[tuple[int, Any, Any, Headers]]:
    """Return timestamp_ms, key, value and headers of each record.

    A missing column: no keys, no headers, `now_ms`. Raises TypeError or ValueError if a column has
    another length than `values`, or a timestamp is illegal.
    """
    content = _listed("values", values, None)
    count = len(content)
    own_keys = _listed("keys", keys, count) if keys is not None else [None] * count
    if timestamps_ms is None:
        times = [now_ms] * count
    else:
        times = _listed("timestamps_ms", timestamps_ms, count)
        for timestamp_ms in times:
            check_timestamp(timestamp_ms)
    own_headers: list[Headers] = [()] * count
    if headers is not None:
        own_headers = [*map(_pairs, _listed("headers", headers, count))]
    return [*zip(times, own_keys, content, own_headers, strict=True)]


def _listed(name: str, column: Any, count: int | None) -> list[Any]:
    if isinstance(column, str | bytes):
        raise TypeError(f"{name} is a column, not {type(column).__name__}")
    listed: list[Any] = column.to_pylist() if hasattr(column, "to_pylist") else list(column)
    if count is not None and len(listed) != count:
        raise ValueError(f"{name} has {len(listed)} rows, values has {count}")
    return listed


def _pairs(headers: Sequence[Any] | None) -> Headers:
    """Return one record's headers; a struct of Arrow is a dict."""
    if not headers:
        return ()
    return tuple((one["key"], one["value"]) if isinstance(one, dict) else one for one in headers)
