"""Traces of OpenTelemetry: an interceptor for producers and consumers. Needs the extra `otel`.

`Producer(..., interceptors=[Tracing()])` makes a span of the kind PRODUCER for each record, from
`send` to its acknowledgement, and adds the headers of the global propagator (by default W3C's
`traceparent`). `Consumer(..., interceptors=[Tracing()])` makes a span of the kind CONSUMER for each
partition of a poll, linked to the spans of its records' producers. The attributes are those of the
semantic conventions for messaging.
"""

from collections.abc import Iterable
from typing import Any, Final

from quorumlog.client.interceptors import (
    AnyProducerRecord,
    AnyRecords,
    ConsumerInterceptor,
    ProducerInterceptor,
)
from quorumlog.client.records import ConsumerRecord, Headers, RecordMetadata
from quorumlog.extras import why_no_packages

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
except ImportError as error:
    needed = why_no_packages("tracing needs", ["opentelemetry"], "otel")
    raise ImportError(needed or str(error)) from error

OPEN_MAX: Final = 100_000  # spans of records that are not acknowledged
LINKS_MAX: Final = 128  # of a span: the default limit of OpenTelemetry


class Tracing(ProducerInterceptor, ConsumerInterceptor):
    """Makes the spans of any number of clients. Put it behind interceptors that change headers."""

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        """`tracer_provider`: None is the global one."""
        self._tracer: Final = trace.get_tracer("quorumlog.client", tracer_provider=tracer_provider)
        self._open: Final[dict[int, trace.Span]] = {}  # by span id, the oldest first

    def on_send(self, record: AnyProducerRecord) -> AnyProducerRecord:
        """Begin a span, a child of the current span, and add its headers to the record."""
        span = self._tracer.start_span(
            f"send {record.topic}",
            kind=trace.SpanKind.PRODUCER,
            attributes=_attributes(record.topic, "send", "send"),
        )
        if span.is_recording():
            if len(self._open) >= OPEN_MAX:
                self._open.pop(next(iter(self._open))).end()
            self._open[span.get_span_context().span_id] = span
        carrier: dict[str, str] = {}
        propagate.inject(carrier, context=trace.set_span_in_context(span))
        kept = [header for header in record.headers if header[0] not in carrier]
        added = [(name, text.encode()) for name, text in carrier.items()]
        return record._replace(headers=(*kept, *added))

    def on_acknowledgement(
        self,
        record: AnyProducerRecord,
        metadata: RecordMetadata | None,
        error: BaseException | None,
    ) -> None:
        """End the span of the record, with its offset or its error."""
        context = trace.get_current_span(context_of(record)).get_span_context()
        span = self._open.pop(context.span_id, None)
        if span is None:
            return
        if metadata is not None:
            span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
            span.set_attribute("messaging.kafka.offset", metadata.offset)
        if error is not None:
            span.record_exception(error)
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(trace.StatusCode.ERROR, str(error))
        span.end()

    def on_consume(self, records: AnyRecords) -> AnyRecords:
        """Make a span for each partition, linked to the producers' spans."""
        for (topic, partition), polled in records.items():
            if not polled:
                continue  # an interceptor before has dropped the records
            attributes = _attributes(topic, "poll", "receive")
            attributes["messaging.batch.message_count"] = len(polled)
            attributes["messaging.destination.partition.id"] = str(partition)
            attributes["messaging.kafka.offset"] = polled[0].offset
            self._tracer.start_span(
                f"poll {topic}",
                kind=trace.SpanKind.CONSUMER,
                attributes=attributes,
                links=_links(polled[:LINKS_MAX]),
            ).end()
        return records


def context_of(record: ConsumerRecord[Any, Any] | AnyProducerRecord) -> Context:
    """Return the context of the record's producer, for a span around its processing.

    `with tracer.start_as_current_span("process", context=context_of(record)): ...`
    """
    return propagate.extract(_carrier(record.headers))


def _carrier(headers: Headers | Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    return {name: content.decode("utf-8", "replace") for name, content in headers if content}


def _links(records: Iterable[ConsumerRecord[Any, Any]]) -> list[trace.Link]:
    spans = (trace.get_current_span(context_of(one)).get_span_context() for one in records)
    return [trace.Link(span) for span in spans if span.is_valid]


def _attributes(topic: str, name: str, kind: str) -> dict[str, str | int]:
    return {
        "messaging.system": "kafka",
        "messaging.destination.name": topic,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
