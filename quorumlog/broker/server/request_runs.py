"""Runs of requests: requests of one connection that look like earlier ones, handled in one step.

A connection keeps templates of its produce requests. Requests that were received together and match
one template are a run: their batches become one append. All other requests are decoded.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from quorumlog.wire.codec.message import Buffer, Received, Request
from quorumlog.wire.codec.messages.produce import ProduceRequest
from quorumlog.wire.codec.produce_template import ProduceTemplate, TemplateMatch, template_of
from quorumlog.wire.codec.schemas import RequestHeader

TEMPLATES_MAX: Final = 16  # per connection: one for each partition that it writes to
HEAD_BYTES_MAX: Final = 1024  # of a template; the names in it may have 32 KB each
UNUSED_MAX: Final = 64  # templates that matched nothing: their making is not worth the time
_PRODUCE: Final = ProduceRequest.API_KEY.to_bytes(2, "big")
_LENGTH_BYTES: Final = 4
_HEAD_AT: Final = 12  # in a frame with its length: behind the correlation id


class RequestRuns:
    """The templates of one connection, the last one used first."""

    __slots__ = ("_templates", "_unused", "last")

    def __init__(self) -> None:
        self._templates: Final[dict[bytes, ProduceTemplate]] = {}  # by head
        self.last: ProduceTemplate | None = None  # used, None: there are none
        self._unused = 0  # templates made, less the runs found

    def learn(self, frame: memoryview, header: RequestHeader, request: Request[Any]) -> None:
        """Keep the template of a request without template, if it can have one."""
        if not isinstance(request, ProduceRequest) or self._unused >= UNUSED_MAX:
            return
        last, head_at = self.last, _HEAD_AT - _LENGTH_BYTES
        if (
            last is not None
            and last.header.api_version == header.api_version
            and frame[head_at : head_at + len(last.head)] == last.head
        ):
            return  # it was found, but its batch needs more than an append
        template = template_of(frame, header, request)
        self._unused += 1
        if template is not None and len(template.head) <= HEAD_BYTES_MAX:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            self._templates[template.head] = self.last = template

    def find(
        self, received: Received, start: int, end: int, count_max: int, frame_max_bytes: int
    ) -> tuple[ProduceTemplate, list[TemplateMatch]] | None:
        """Return the template of the first frame of received[start:end), and its run.

        The run has at most `count_max` frames, and all but the first at most `frame_max_bytes`.
        """
        template = self.last
        if template is None or not received[0].startswith(_PRODUCE, start + _LENGTH_BYTES):
            return None
        limits = count_max, frame_max_bytes
        run = template.match_run(received, start, end, *limits)
        if not run:
            template = self._other(received[0], start)
            run = [] if template is None else template.match_run(received, start, end, *limits)
        if template is None or not run:
            return None
        self.last = template
        if self._unused:
            self._unused -= 1
        return template, run

    def _other(self, buffer: bytearray, start: int) -> ProduceTemplate | None:
        start += _HEAD_AT
        for size in sorted({len(head) for head in self._templates}):
            template = self._templates.get(bytes(buffer[start : start + size]))
            if template is not None:
                return template
        return None


class WaitingRun:
    """The responses to a run, in their turn.

    `ready`: the responses to `ready_count` requests, not yet sent; `waiting`: the number of
    requests without response; `arrived_s`: the time of their arrival.
    """

    __slots__ = ("_changed", "api_key", "arrived_s", "ready", "ready_count", "waiting")

    def __init__(
        self, changed: Callable[[], None], waiting: int, api_key: int, arrived_s: float
    ) -> None:
        self._changed: Final = changed
        self.api_key, self.arrived_s = api_key, arrived_s
        self.ready: list[Buffer] = []
        self.ready_count, self.waiting = 0, waiting

    def deliver(self, responses: Sequence[Buffer], count: int) -> None:
        """Add the responses to the next `count` requests."""
        self.ready += responses
        self.ready_count += count
        self.waiting -= count
        self._changed()

    def take(self) -> tuple[list[Buffer], int]:
        """Return the ready responses and the number of their requests; then none is ready."""
        ready, self.ready = self.ready, []
        count, self.ready_count = self.ready_count, 0
        return ready, count
