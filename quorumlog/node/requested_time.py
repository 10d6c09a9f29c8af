"""Time on request: advances of a node's wall clock, and passes that go by it.

    POST /api/v1/roll              -> {}
    POST /api/v1/advance           {"advances": [[at_ms, by_ms], ...]} -> {"ahead_ms", "removed"}
    POST /api/v1/apply-retention   {"topic"} -> {"removed"}
    POST /api/v1/compact           {"topic"} -> {"removed"}
    POST /api/v1/expire-groups     {} -> {"offsets"}

They serve `LocalCluster.advance` and its like, which give all nodes of a cluster the same clock.
Each needs the shared secret. A request to advance has all earlier advances, too: it may be
repeated, and a node that has missed one makes it with the next. Errors: status 400 or 503, and
{"error"}.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from aiohttp import web

from quorumlog import clock
from quorumlog.advances import Advance
from quorumlog.broker.partitions.io.requested_passes import Refused, Report
from quorumlog.node.node_broker import NodeBroker
from quorumlog.storage.errors import StorageError

Removed = dict[str, Any]
_NO_BROKER: Final = "this node has no replicas: it lacks the role broker"
_logger: Final = logging.getLogger(__name__)


class RequestedTime:
    """The verbs of one node, at the clock of its process."""

    def __init__(self, broker: NodeBroker | None) -> None:
        """`broker` None: the node has only the role controller."""
        self._broker: Final = broker
        if broker is not None:
            broker.replicas.note_clock_ahead(clock.advances().ahead_ms)

    async def roll(self) -> Removed:
        """End the active segments: later records will have segments of their own.

        Raises StorageError.
        """
        if self._broker is not None:
            await self._broker.replicas.passes.roll_all()
        return {}

    async def advance(self, made: Iterable[Advance]) -> Removed:
        """Advance the clock, then make all passes that go by it. Raises ValueError, StorageError.

        Offsets and transactional ids begin to expire, and late transactions to abort, too.
        """
        moved_ms = clock.advances().extend(made)
        removed: Report = {}
        if self._broker is not None and moved_ms:
            _logger.info("the wall clock is %d ms ahead now", clock.advances().ahead_ms)
            self._broker.replicas.note_clock_ahead(clock.advances().ahead_ms)
            self._broker.transactions.advance(moved_ms)
            self._broker.groups.advance(moved_ms)
            removed = await self._broker.replicas.passes.age()
        return {"ahead_ms": clock.advances().ahead_ms, "removed": removed}

    async def apply_retention(self, topic: str) -> Removed:
        """Delete the expired and surplus segments of a topic. Raises Refused, StorageError."""
        return {"removed": await self._of_broker().replicas.passes.apply_retention(topic)}

    async def compact(self, topic: str) -> Removed:
        """Compact the logs of a topic. Raises Refused, StorageError."""
        return {"removed": await self._of_broker().replicas.passes.compact(topic)}

    async def expire_groups(self) -> Removed:
        """Delete the expired offsets of the groups coordinated here. Raises TimeoutError."""
        return {"offsets": await self._of_broker().groups.expire()}

    def _of_broker(self) -> NodeBroker:
        if self._broker is None:
            raise Refused(_NO_BROKER)
        return self._broker

    def add_routes(self, app: web.Application, check: Callable[[web.Request], None]) -> None:
        """Serve the verbs. `check` raises the response to a request without the shared secret."""

        def post(path: str, verb: Callable[[Any], Awaitable[Removed]]) -> None:
            async def handle(request: web.Request) -> web.Response:
                check(request)
                try:
                    return web.json_response(await verb(await _body(request)))
                except ValueError as error:  # with it, Refused
                    return web.json_response({"error": str(error)}, status=400)
                except StorageError as error:
                    return web.json_response({"error": str(error)}, status=503)
                except TimeoutError:
                    error_text = "expired offsets are not deleted yet: too few replicas are in sync"
                    return web.json_response({"error": error_text}, status=503)

            app.router.add_post(f"/api/v1/{path}", handle)

        post("roll", lambda _: self.roll())
        post("advance", lambda body: self.advance(_advances(body)))
        post("apply-retention", lambda body: self.apply_retention(_topic(body)))
        post("compact", lambda body: self.compact(_topic(body)))
        post("expire-groups", lambda _: self.expire_groups())


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")  # noqa: TRY004 - the sender's error
    return body


def _topic(body: dict[str, Any]) -> str:
    topic = body.get("topic")
    if not isinstance(topic, str):
        raise ValueError('the body needs {"topic": NAME}')  # noqa: TRY004 - the sender's error
    return topic


def _advances(body: dict[str, Any]) -> list[Advance]:
    pairs = body.get("advances")
    if not isinstance(pairs, list) or not all(map(_is_advance, pairs)):
        raise ValueError('the body needs {"advances": [[at_ms, by_ms], ...]}, whole numbers')
    return [Advance(*one) for one in pairs]


def _is_advance(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(one) is int for one in pair)
