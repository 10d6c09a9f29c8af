"""The client instances of KIP-714: their subscriptions, the times of their requests, their metrics.

Refused, as by ClientMetricsManager of Kafka 4.3: reserved ids, pushes after the last one, requests
before their time, an outdated subscription, an unknown compression, reports that are too large or
cannot be read. The metrics of `SHOWN_MAX` clients are kept, the states of `INSTANCES_MAX`.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from quorumlog.broker.telemetry.core.otlp import Labels, MalformedReport, Point, points
from quorumlog.settings.client_metrics import (
    ALL_METRICS,
    INTERVAL_MS_DEFAULT,
    MATCH,
    TEXT_MAX,
    Matches,
    interval_of,
    metrics_of,
    patterns,
)
from quorumlog.settings.kinds import BadValue
from quorumlog.wire.codec.compression import Compression, decompress
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import BatchTooLarge, CorruptBatch

INSTANCES_MAX: Final = 16_384
EXPIRY_MS_MIN: Final = 60_000
EXPIRY_INTERVALS: Final = 3
RESERVED_IDS: Final = 100
"""The first ids (as numbers) are no client's: `Uuid.RESERVED`."""
SHOWN_MAX: Final = 100  # clients whose metrics are kept
SERIES_MAX: Final = 500  # of one client
REPORT_BYTES_MAX: Final = 4 * 1_048_576  # uncompressed
ACCEPTED_COMPRESSIONS: Final = (
    Compression.ZSTD,
    Compression.LZ4,
    Compression.GZIP,
    Compression.SNAPPY,
)
"""In Kafka's order, in which clients prefer them. Reports without compression are taken, too."""
MAY_ASK_AGAIN: Final = {ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE}
_LONG_AGO: Final = -(2**62)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProperties:
    """The properties that patterns are compared with; their names are KIP-714's."""

    client_id: str
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str


@dataclass(slots=True)
class Instance:
    """One client. `series`: the last values of its metrics, by name and labels.

    Invariant: `series` has at most SERIES_MAX entries.
    """

    client: ClientProperties
    subscriptions: object  # the configurations from which the next three fields come
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE
    asked_ms: int = _LONG_AGO
    pushed_ms: int = _LONG_AGO
    expires_ms: int = 0
    series: dict[tuple[str, Labels], Point] = field(default_factory=dict)

    def may_ask(self, now_ms: int) -> bool:
        """Whether the client may get its subscription now; records the time then."""
        is_due = now_ms - max(self.asked_ms, self.pushed_ms) >= self.interval_ms
        if not is_due and self.last_error not in MAY_ASK_AGAIN:
            return False
        self.asked_ms = now_ms
        return True

    def may_push(self, now_ms: int) -> bool:
        """Whether the client may push now; records the time then.

        The first push after a subscription is due at any time: clients begin with a random delay.
        """
        is_first = self.asked_ms > self.pushed_ms
        if not is_first and now_ms - self.pushed_ms < self.interval_ms:
            return False
        self.pushed_ms = now_ms
        return True


class ClientInstances:
    """All clients of one broker, the least recently seen first.

    Invariants: at most INSTANCES_MAX; at most SHOWN_MAX of them have series.
    """

    def __init__(self, telemetry_max_bytes: int) -> None:
        self.telemetry_max_bytes: Final = telemetry_max_bytes
        self.pushes: Final = Counter[ErrorCode]()
        self.dropped_points = 0  # beyond SERIES_MAX
        self._instances: Final = OrderedDict[bytes, Instance]()
        self._configs: Mapping[str, Mapping[str, str]] = {}
        self._compiled: Sequence[tuple[dict[str, Matches], Mapping[str, str]]] = ()

    def subscribe(self, configs: Mapping[str, Mapping[str, str]]) -> Sequence[str]:
        """Apply the subscriptions of an image; each instance is compared at its next request.

        Return a message for each that matches no client, since this broker lacks a library that
        the controller has.
        """
        if configs is self._configs:
            return ()
        compiled, problems = [], []
        for name, config in sorted(configs.items()):
            try:
                compiled.append((patterns(config.get(MATCH, "")), config))
            except BadValue as error:
                problems.append(f"the subscription {name!r} matches no client: {error}")
        self._configs, self._compiled = configs, compiled
        return problems

    def asked(
        self, instance_id: bytes, client: ClientProperties, now_ms: int
    ) -> Instance | ErrorCode:
        """Return the client's subscription, or the error."""
        instance = self._instance(instance_id, client, now_ms)
        if not instance.may_ask(now_ms):
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        instance.last_error = ErrorCode.NONE
        return instance

    def pushed(
        self,
        instance_id: bytes,
        client: ClientProperties,
        now_ms: int,
        *,
        subscription_id: int,
        is_terminating: bool,
        compression: int,
        metrics: memoryview,
    ) -> ErrorCode:
        """Keep the metrics of a report, or return the error."""
        if int.from_bytes(instance_id, "big") < RESERVED_IDS:
            self.pushes[ErrorCode.INVALID_REQUEST] += 1
            return ErrorCode.INVALID_REQUEST
        instance = self._instance(instance_id, client, now_ms)
        if instance.is_terminating:
            error = ErrorCode.INVALID_REQUEST
        elif not instance.may_push(now_ms) and not is_terminating:
            error = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        elif subscription_id != instance.subscription_id:
            error = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        elif compression not in {*Compression}:
            error = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        elif len(metrics) > self.telemetry_max_bytes:
            error = ErrorCode.TELEMETRY_TOO_LARGE
        else:
            error = self._keep(instance, Compression(compression), metrics)
        instance.is_terminating = is_terminating
        instance.last_error = error
        self.pushes[error] += 1
        return error

    def shown(self, now_ms: int) -> list[tuple[bytes, Instance]]:
        """Return the instances with metrics, by id; remove expired instances."""
        for instance_id in [i for i, one in self._instances.items() if one.expires_ms <= now_ms]:
            del self._instances[instance_id]
        return sorted((i, one) for i, one in self._instances.items() if one.series)

    def __len__(self) -> int:
        return len(self._instances)

    def _instance(self, instance_id: bytes, client: ClientProperties, now_ms: int) -> Instance:
        instance = self._instances.get(instance_id)
        if instance is None or instance.expires_ms <= now_ms:
            instance = self._new(instance_id, client)
        elif instance.subscriptions is not self._configs:
            series = instance.series
            instance = self._new(instance_id, instance.client)
            instance.series = series
        expiry_ms = max(EXPIRY_MS_MIN, EXPIRY_INTERVALS * instance.interval_ms)
        instance.expires_ms = now_ms + expiry_ms
        self._instances[instance_id] = instance
        self._instances.move_to_end(instance_id)
        if len(self._instances) > INSTANCES_MAX:
            self._instances.popitem(last=False)
        return instance

    def _new(self, instance_id: bytes, client: ClientProperties) -> Instance:
        metrics, interval_ms = set[str](), INTERVAL_MS_DEFAULT
        for matches, config in self._compiled:
            if all(match(_property(name, instance_id, client)) for name, match in matches.items()):
                metrics.update(metrics_of(config))
                interval_ms = min(interval_ms, interval_of(config))
        if ALL_METRICS in metrics:
            metrics = {ALL_METRICS}
        selected = tuple(sorted(metrics))
        subscription_id = _subscription_id(selected, interval_ms, instance_id)
        return Instance(client, self._configs, selected, interval_ms, subscription_id)

    def _keep(self, instance: Instance, compression: Compression, metrics: memoryview) -> ErrorCode:
        try:
            data = decompress(compression, metrics, size_max=REPORT_BYTES_MAX)
            found = list(points(data))
        except (CorruptBatch, BatchTooLarge, MalformedReport):
            return ErrorCode.INVALID_RECORD
        if found and not instance.series:
            self._make_room()
        for point in found:
            key = point.name, point.labels
            before = instance.series.get(key)
            if before is None and len(instance.series) >= SERIES_MAX:
                self.dropped_points += 1
            else:
                instance.series[key] = _added(before, point)
        return ErrorCode.NONE

    def _make_room(self) -> None:
        """Forget the metrics of the clients that were seen least recently."""
        shown = [one for one in self._instances.values() if one.series]
        for instance in shown[: max(0, len(shown) - SHOWN_MAX + 1)]:
            instance.series = {}


def _property(name: str, instance_id: bytes, client: ClientProperties) -> str:
    if name == "client_instance_id":
        return id_text(instance_id)
    text: str = getattr(client, name)
    return text[:TEXT_MAX]


def id_text(instance_id: bytes) -> str:
    """Return an id as Kafka's clients print it: unpadded base64, for URLs."""
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(instance_id).rstrip(b"=").decode()


def _subscription_id(metrics: Sequence[str], interval_ms: int, instance_id: bytes) -> int:
    """Return CRC32C of the subscription, xor Java's hash of the client's id, as an int32."""
    described = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    for start in range(0, len(instance_id), 4):
        described ^= int.from_bytes(instance_id[start : start + 4], "big")
    return described - 2**32 if described >= 2**31 else described


def _added(before: Point | None, point: Point) -> Point:
    """Return the value since the client's start: a delta is added to the value before."""
    if before is None or not point.is_delta:
        return point
    value, buckets = point.value + before.value, point.buckets
    if buckets is not None:
        if before.buckets is None or before.buckets[0] != buckets[0]:
            return point
        counts = tuple(a + b for a, b in zip(before.buckets[1], buckets[1], strict=True))
        buckets = buckets[0], counts
    return Point(
        name=point.name,
        labels=point.labels,
        value=value,
        is_sum=point.is_sum,
        is_delta=True,
        buckets=buckets,
    )
