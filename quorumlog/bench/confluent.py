"""Sends a ProduceLoad by confluent-kafka (librdkafka): the most used client but Java's.

It reports no retried attempts, so `attempts` of its results is None.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from quorumlog.bench.histogram import Histogram
from quorumlog.bench.load import (
    ACKNOWLEDGED,
    FAILED,
    NUMBER_BYTES,
    WARM_UP,
    Moment,
    ProduceLoad,
    ProduceResult,
)
from quorumlog.bench.produce import Progress
from quorumlog.client import ErrorCode, KafkaError
from quorumlog.client.librdkafka import librdkafka_settings
from quorumlog.client.security import SecuritySettings

_SAMPLE_S: Final = 0.05
_SHORT_SAMPLE_S: Final = 0.01
_LATENCY_OF: Final = 50
_STORED_WITHIN_S: Final = 5.0
_QUERY_S: Final = 10.0
_DELIVERY_TIMEOUT_MS: Final = 120_000
_LIBRARY_RETRIES_MAX: Final = 2_147_483_647


def run_confluent(
    client: Mapping[str, Any], load: ProduceLoad, progress: Progress
) -> tuple[ProduceResult, bytearray]:
    """Run a load; return the result, and the outcomes of its records if the load keeps them.

    It blocks. Raises ImportError without confluent-kafka, ValueError for a wrong protection, and
    KafkaError.
    """
    import confluent_kafka

    try:
        run = _ConfluentRun(confluent_kafka, client, load, progress)
        return run.run(), run.outcomes
    except confluent_kafka.KafkaException as failure:
        error = failure.args[0]
        code = max(error.code(), ErrorCode.UNKNOWN_SERVER_ERROR)  # its own codes are below
        raise KafkaError(code, f"librdkafka: {error.str()}", definite=False) from failure


class _ConfluentRun:
    """One run of a load."""

    def __init__(
        self, library: Any, client: Mapping[str, Any], load: ProduceLoad, progress: Progress
    ) -> None:
        servers = client["bootstrap_servers"]
        bootstrap = servers if isinstance(servers, str) else ",".join(servers)
        fields = SecuritySettings.__dataclass_fields__
        security = SecuritySettings(**{k: v for k, v in client.items() if k in fields})
        self._library: Final = library
        self._connection: Final = {"bootstrap.servers": bootstrap, **librdkafka_settings(security)}
        self._load: Final = load
        self._progress: Final = progress
        self._producer: Final = library.Producer(self._settings())
        self._failed: Final = Counter[str]()
        self._latency: Final = Histogram()
        self._moments: Final[list[Moment]] = []
        self._is_released = False
        self._acknowledged = self._settled = self._noted = 0
        self.outcomes: Final = bytearray(load.messages or 0 if load.keeps_outcomes else 0)

    def _settings(self) -> dict[str, Any]:
        load = self._load
        return {
            **self._connection,
            "log_level": 2,  # no line for each connection to a broker that was killed on purpose
            "acks": str(load.acks),
            "enable.idempotence": load.idempotent,
            "retries": min(load.retries, _LIBRARY_RETRIES_MAX),
            "max.in.flight.requests.per.connection": 5,
            "linger.ms": load.linger_ms,
            "compression.type": load.compression,
            "delivery.timeout.ms": _DELIVERY_TIMEOUT_MS,
            "queue.buffering.max.messages": max(load.window * 2, 1000),
        }

    def run(self) -> ProduceResult:
        """Warm up, send, and wait for the last outcome."""
        load = self._load
        topic = self._producer.list_topics(load.topic, timeout=_QUERY_S).topics[load.topic]
        if topic.error is not None:
            raise self._library.KafkaException(topic.error)
        partitions = sorted(topic.partitions)
        before = self._log_ends(partitions) + self._warm_up(partitions)
        began_s = time.monotonic()
        sent = self._send_all(partitions, began_s)
        while self._settled < sent:
            self._poll(_SAMPLE_S, began_s)
        seconds = time.monotonic() - began_s
        self._note(seconds)
        stored = self._stored(partitions, before, sent)
        return ProduceResult(
            began_s=began_s,
            seconds=seconds,
            sent=sent,
            acknowledged=self._acknowledged,
            size=load.size,
            failed=dict(self._failed),
            stored=stored,
            moments=self._moments,
            latency=self._latency,
        )

    def _warm_up(self, partitions: list[int]) -> int:
        until_s, number = time.monotonic() + self._load.warm_up_s, WARM_UP
        while number == WARM_UP or time.monotonic() < until_s:
            for partition in partitions:
                self._producer.produce(self._load.topic, self._value(number), partition=partition)
                number += 1
            self._producer.flush()
        return number - WARM_UP

    def _value(self, number: int) -> bytes:
        return number.to_bytes(NUMBER_BYTES, "big") + bytes(self._load.size - NUMBER_BYTES)

    def _send_all(self, partitions: list[int], began_s: float) -> int:
        load, number = self._load, 0
        window = 1 if load.mode == "one-by-one" else load.window
        while load.messages is None or number < load.messages:
            now_s = time.monotonic() - began_s
            if load.duration_s is not None and now_s >= load.duration_s:
                break
            if load.rate_per_s is not None and now_s < number / load.rate_per_s:
                self._poll(number / load.rate_per_s - now_s, began_s)
                continue
            while number == load.hold_at and not self._is_released:
                self._poll(_SHORT_SAMPLE_S, began_s)
            self._producer.produce(
                load.topic,
                self._value(number),
                partition=partitions[number % len(partitions)],
                on_delivery=self._delivered(number),
            )
            number += 1
            self._poll(0, began_s)
            while number - self._settled >= window:
                self._poll(_SAMPLE_S, began_s)
        return number

    def _delivered(self, number: int) -> Callable[[Any, Any], None]:
        sent_s = time.monotonic()

        def count(error: Any, _message: Any) -> None:
            self._settled += 1
            if error is None:
                self._acknowledged += 1
                if self._load.mode == "one-by-one" or number % _LATENCY_OF == 0:
                    self._latency.add((time.monotonic() - sent_s) * 1000)
            else:
                self._failed[str(error.name()).lstrip("_")] += 1
            if self.outcomes:
                self.outcomes[number] = ACKNOWLEDGED if error is None else FAILED

        return count

    def _poll(self, wait_s: float, began_s: float) -> None:
        """Deliver callbacks, and note the progress now and then."""
        self._producer.poll(wait_s)
        now_s = time.monotonic() - began_s
        pause_s = _SAMPLE_S if self._load.hold_at is None else _SHORT_SAMPLE_S
        if not self._moments or now_s - self._moments[-1].at_s >= pause_s:
            self._note(now_s)
            self._is_released |= self._progress(self._acknowledged) is True

    def _note(self, at_s: float) -> None:
        acknowledged = self._acknowledged - self._noted
        self._moments.append(Moment(at_s=round(at_s, 4), acknowledged=acknowledged, attempts={}))
        self._noted = self._acknowledged

    def _log_ends(self, partitions: list[int]) -> int:
        if not self._load.counts_stored:
            return 0
        consumer = self._library.Consumer({**self._connection, "group.id": "bench"})
        try:
            places = [self._library.TopicPartition(self._load.topic, one) for one in partitions]
            return sum(consumer.get_watermark_offsets(place, _QUERY_S)[1] for place in places)
        finally:
            consumer.close()

    def _stored(self, partitions: list[int], before: int, wanted: int) -> int | None:
        if not self._load.counts_stored:
            return None
        until_s, stored = time.monotonic() + _STORED_WITHIN_S, 0
        while stored < wanted and time.monotonic() < until_s:
            stored = self._log_ends(partitions) - before
        return stored
