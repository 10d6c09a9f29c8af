"""Reports of clients (KIP-714), encoded by the rules of protobuf."""

from collections.abc import Mapping, Sequence
from struct import pack

GAUGE, SUM, HISTOGRAM = 5, 7, 9
DELTA, CUMULATIVE = 1, 2


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def field(number: int, value: bytes | int | float) -> bytes:
    """Encode bytes, a varint or a double."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 1) + pack("<d", value)
    return varint(number << 3) + varint(value)


def attributes(number: int, labels: Mapping[str, str]) -> bytes:
    return b"".join(
        field(number, field(1, name.encode()) + field(2, field(1, value.encode())))
        for name, value in labels.items()
    )


def metric(
    name: str,
    value: float | int,
    kind: int = GAUGE,
    temporality: int = DELTA,
    labels: Mapping[str, str] | None = None,
) -> bytes:
    number = field(4, value) if isinstance(value, float) else b"\x31" + pack("<q", value)
    point = attributes(7, labels or {}) + field(3, 1.0) + number
    return field(1, name.encode()) + field(kind, field(1, point) + field(2, temporality))


def histogram(name: str, total: float, bounds: Sequence[float], counts: Sequence[int]) -> bytes:
    point = field(5, total)
    point += field(6, pack(f"<{len(counts)}Q", *counts))
    point += field(7, pack(f"<{len(bounds)}d", *bounds)) if bounds else b""
    return field(1, name.encode()) + field(HISTOGRAM, field(1, point) + field(2, DELTA))


def report(*metrics: bytes, resource: Mapping[str, str] | None = None) -> bytes:
    scope = field(1, b"") + b"".join(field(2, one) for one in metrics)
    return field(1, field(1, attributes(1, resource or {})) + field(2, scope))
