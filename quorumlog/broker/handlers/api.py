"""What a handler of one API is: its versions, and the function that answers."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.schemas import RequestHeader

if TYPE_CHECKING:
    from quorumlog.broker.io.context import BrokerContext

R = TypeVar("R")


class Disconnect(Exception):
    """Raised by a handler: close the connection, because no answer could say what is wrong."""


Reply: TypeAlias = Response | asyncio.Future[Any] | Coroutine[Any, Any, Response | None] | None
"""A response now, later (Future), as a task (coroutine), or never (None, also a task's: acks=0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiHandler:
    """One API: `handle` is called inside the socket callback, so it must not block.

    Buffers in a request are views that are valid until `handle` returns; those of a coroutine
    handler are valid until it ends. `min_version..max_version` is what we answer.
    """

    api_key: int
    min_version: int
    max_version: int
    handle: Callable[["BrokerContext", RequestHeader, Any], Reply]
    advertised_min_version: int | None = None  # if ApiVersions must say another one (Produce)


def when_done(
    result: asyncio.Future[R], respond: Callable[[R], Response]
) -> Response | asyncio.Future[Response]:
    """Return the response to `result`: now, if it is there already, or later."""
    if result.done():
        return respond(result.result())
    response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def done(_result: asyncio.Future[R]) -> None:
        if response.done():  # the connection is gone
            return
        error = result.exception()
        if error is None:
            response.set_result(respond(result.result()))
        else:
            response.set_exception(error)

    result.add_done_callback(done)
    return response
