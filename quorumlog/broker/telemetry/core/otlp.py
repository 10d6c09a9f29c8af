"""Reads a report of a client: the part of OpenTelemetry's `MetricsData` that KIP-714 sends.

Gauges, sums and histograms, from protobuf (opentelemetry/proto/metrics/v1/metrics.proto). Unknown
fields are skipped. A report is untrusted: the fields that are read, and the text of a label, are
bounded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct, error, iter_unpack
from typing import Final

FIELDS_MAX: Final = 50_000  # of one report: about 50 ms
LABELS_MAX: Final = 16  # of one point
BUCKETS_MAX: Final = 64  # of a histogram; a larger one is left out
TEXT_MAX: Final = 128  # characters of a name and of the value of a label
_DOUBLE: Final = Struct("<d")
_FIXED: Final = Struct("<q")
_VARINT_BITS_MAX: Final = 63
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_DELTA: Final = 1  # AggregationTemporality

Labels = tuple[tuple[str, str], ...]
Buckets = tuple[tuple[float, ...], tuple[int, ...]]


class MalformedReport(ValueError):
    """A report is no `MetricsData`, or is too large to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a metric. `labels` are sorted.

    `is_delta`: the value is the change since the last report. `buckets`: of a histogram, whose
    sum is `value`: the upper bounds, and one count more, of the values in each bucket.
    """

    name: str
    labels: Labels
    value: float
    is_sum: bool = False
    is_delta: bool = False
    buckets: Buckets | None = None


class _Reader:
    """Yields the fields of messages: number, wire type, and a number or the bytes."""

    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def fields(self, data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
        """Yield each field that has bytes. Raises MalformedReport."""
        position = 0
        while position < len(data):
            self._left -= 1
            if self._left < 0:
                raise MalformedReport(f"a report has more than {FIELDS_MAX} fields")
            tag, position = _varint(data, position)
            wire_type = tag & 7
            if wire_type == _VARINT:
                end = _varint(data, position)[1]
            elif wire_type == _BYTES:
                size, position = _varint(data, position)
                end = position + size
            elif wire_type in _SIZES:
                end = position + _SIZES[wire_type]
            else:
                raise MalformedReport(f"wire type {wire_type} is not of protobuf 3")
            if end > len(data):
                raise MalformedReport("a field is longer than its message")
            yield tag >> 3, wire_type, data[position:end]
            position = end

    def messages(self, data: memoryview, number: int) -> Iterator[memoryview]:
        """Yield the messages that a field with this number holds."""
        for found, wire_type, value in self.fields(data):
            if found == number and wire_type == _BYTES:
                yield value


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for bits in range(0, _VARINT_BITS_MAX + 1, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 127) << bits
        if byte < 128:
            return value, position
    raise MalformedReport("a number has no end")


def _text(data: memoryview) -> str:
    return str(data[: 4 * TEXT_MAX], "utf-8", "replace")[:TEXT_MAX]


def points(data: bytes) -> Iterator[Point]:
    """Yield the points of a report, in its order. Raises MalformedReport, also after some points.

    A point without a value (`no recorded value`), and of an unknown kind, is left out.
    """
    reader = _Reader()
    try:
        for resource in reader.messages(memoryview(data), 1):
            shared: dict[str, str] = {}
            for described in reader.messages(resource, 1):
                shared |= _labels(reader, described, 1)
            for scope in reader.messages(resource, 2):
                for metric in reader.messages(scope, 2):
                    yield from _metric(reader, metric, shared)
    except error as problem:  # of struct: a number of another size
        raise MalformedReport(str(problem)) from problem


def _metric(reader: _Reader, metric: memoryview, shared: dict[str, str]) -> Iterator[Point]:
    name, kinds = "", []
    for number, wire_type, value in reader.fields(metric):
        if wire_type == _BYTES and number == 1:
            name = _text(value)
        elif wire_type == _BYTES and number in {_GAUGE, _SUM, _HISTOGRAM}:
            kinds.append((number, value))
    for number, kind in kinds:
        is_delta = False
        for found, wire_type, value in reader.fields(kind):
            if found == 2 and wire_type == _VARINT:
                is_delta = _varint(value, 0)[0] == _DELTA
        labels_at = _HISTOGRAM_LABELS if number == _HISTOGRAM else _NUMBER_LABELS
        read = _histogram if number == _HISTOGRAM else _number
        for data in reader.messages(kind, 1):
            found_value = read(reader, data)
            if found_value is not None:
                value_, buckets = found_value
                yield Point(
                    name=name,
                    labels=_sorted(shared | _labels(reader, data, labels_at)),
                    value=value_,
                    is_sum=number == _SUM,
                    is_delta=is_delta,
                    buckets=buckets,
                )


def _number(reader: _Reader, point: memoryview) -> tuple[float, None] | None:
    """Return the value of a NumberDataPoint, if it has one."""
    value: float | None = None
    for number, wire_type, data in reader.fields(point):
        if wire_type == _FIXED64 and number == 4:
            value = _DOUBLE.unpack(data)[0]
        elif wire_type == _FIXED64 and number == 6:
            value = _FIXED.unpack(data)[0]
    return None if value is None else (value, None)


def _histogram(reader: _Reader, point: memoryview) -> tuple[float, Buckets] | None:
    """Return the sum and the buckets of a HistogramDataPoint, if its bounds rise."""
    total, counts, bounds = 0.0, list[int](), list[float]()
    for number, wire_type, data in reader.fields(point):
        if number == 5 and wire_type == _FIXED64:
            total = _DOUBLE.unpack(data)[0]
        elif number in {6, 7} and len(data) <= 8 * BUCKETS_MAX:
            if number == 6:
                counts += (count for (count,) in iter_unpack("<Q", data))
            else:  # explicit_bounds
                bounds += (bound for (bound,) in iter_unpack("<d", data))
    if len(counts) != len(bounds) + 1 or len(counts) > BUCKETS_MAX:
        return None
    if bounds != sorted({*bounds}):
        return None
    return total, (tuple(bounds), tuple(counts))


_GAUGE, _SUM, _HISTOGRAM = 5, 7, 9  # fields of Metric
_NUMBER_LABELS, _HISTOGRAM_LABELS = 7, 9  # fields of the points


def _labels(reader: _Reader, data: memoryview, number: int) -> dict[str, str]:
    """Return the attributes with a plain value, at most LABELS_MAX."""
    found: dict[str, str] = {}
    for attribute in reader.messages(data, number):
        key = value = ""
        for field, wire_type, inner in reader.fields(attribute):
            if field == 1 and wire_type == _BYTES:
                key = _text(inner)
            elif field == 2 and wire_type == _BYTES:
                value = _plain(reader, inner)
        if key and len(found) < LABELS_MAX:
            found[key] = value
    return found


def _plain(reader: _Reader, data: memoryview) -> str:
    """Return the text of an AnyValue; "" of a list, a map or bytes."""
    for number, wire_type, value in reader.fields(data):
        match number, wire_type:
            case 1, 2:
                return _text(value)
            case 2, 0:
                return "true" if _varint(value, 0)[0] else "false"
            case 3, 0:
                whole = _varint(value, 0)[0] & (2**64 - 1)
                return str(whole - 2**64 if whole >= 2**63 else whole)
            case 4, 1:
                return str(_DOUBLE.unpack(value)[0])
            case _:
                pass
    return ""


def _sorted(labels: dict[str, str]) -> Labels:
    return tuple(sorted(labels.items())[:LABELS_MAX])
