"""Spans of producers and consumers, and the headers between them."""

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from quorumlog.client import KafkaError, ProducerInterceptor, ProducerRecord
from quorumlog.client import tracing as module
from quorumlog.client.settings import ConsumerOptions, ProducerOptions
from quorumlog.client.sync import SyncProducer
from quorumlog.client.tracing import Tracing, context_of
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.client.fake_cluster import PRODUCE, FakeCluster, T
from tests.support.client.opened import consuming, producing


class Recorded:
    """A tracing interceptor and its finished spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.interceptor = Tracing(self.provider)

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]


class Replacing(ProducerInterceptor):
    """Makes another record with the same headers."""

    def on_send(self, record: Any) -> Any:
        return ProducerRecord(record.topic, b"other", headers=record.headers)


async def test_spans_of_a_record_are_linked_by_its_headers() -> None:
    recorded = Recorded()
    options: ProducerOptions = {"interceptors": [recorded.interceptor, Replacing()]}
    async with producing(**options) as (cluster, producer):
        with recorded.tracer.start_as_current_span("request") as parent:
            await producer.send_and_wait("t", b"v", headers=[("traceparent", b"old"), ("h", b"1")])
        await producer.send_and_wait("t", b"v")
        first, second = recorded.spans(SpanKind.PRODUCER)
        assert (first.name, first.parent) == ("send t", parent.get_span_context())
        assert second.parent is None
        assert first.attributes is not None
        assert first.attributes["messaging.kafka.offset"] == 0
        assert first.attributes["messaging.destination.name"] == "t"
        reading: ConsumerOptions = {"interceptors": [recorded.interceptor]}
        async with consuming(**reading) as (other, consumer):
            other.logs = cluster.logs
            consumer.assign([T])
            consumer.seek(T, 0)
            polled: list[Any] = []
            while len(polled) < 2:
                polled += (await consumer.poll(5_000)).get(T, [])
    names = [[name for name, _ in record.headers] for record in polled]
    assert names == [["h", "traceparent"], ["traceparent"]]
    linked = [link for span in recorded.spans(SpanKind.CONSUMER) for link in span.links]
    assert [link.context.span_id for link in linked] == [
        span.context.span_id for span in (first, second) if span.context
    ]
    dropped: dict[Any, list[Any]] = {T: []}  # by an interceptor before
    assert recorded.interceptor.on_consume(dropped) == dropped
    context = get_current_span(context_of(polled[0])).get_span_context()
    assert context.trace_id == parent.get_span_context().trace_id


async def test_a_failed_record_ends_its_span_with_the_error() -> None:
    recorded = Recorded()
    async with producing(interceptors=[recorded.interceptor]) as (cluster, producer):
        cluster.fault = lambda _, api: ErrorCode.INVALID_RECORD if api == PRODUCE else None
        with pytest.raises(KafkaError):
            await producer.send_and_wait("t", b"v")
        with pytest.raises(KafkaError, match="max_request_size"):
            await producer.send("t", bytes(2_000_000))
    spans = recorded.spans(SpanKind.PRODUCER)
    assert [span.status.status_code for span in spans] == [StatusCode.ERROR] * 2
    assert [(span.attributes or {})["error.type"] for span in spans] == ["KafkaError"] * 2


def test_open_spans_are_bounded(brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_MAX", 2)
    recorded = Recorded()
    options: ProducerOptions = {"interceptors": [recorded.interceptor], "linger_ms": 60_000}
    with SyncProducer(brokers.bootstrap, **options) as producer:
        for _ in range(5):
            producer.send("t", b"v")
        assert len(recorded.spans(SpanKind.PRODUCER)) == 3
    assert len(recorded.spans(SpanKind.PRODUCER)) == 5
    assert len(brokers.values()) == 5


def test_without_the_package_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import quorumlog.extras as extras\n"
        "extras.find_spec = lambda name: None\n"
        "import quorumlog.client.tracing\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "tracing needs opentelemetry: pip install '" in done.stderr
    assert "[otel]'" in done.stderr
