"""Common parts of mutants that treat consumers badly, and replicas well."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.server.api import ApiHandler, BrokerContext, Handle, Reply, when_done
from quorumlog.wire.codec.messages.fetch import FetchRequest, FetchResponse
from quorumlog.wire.codec.schemas import RequestHeader


def with_handler(api_key: int, handle: Callable[[Handle], Handle]) -> Mapping[int, ApiHandler]:
    """Return the handlers of a node, with one that is made from the real one."""
    real = HANDLERS[api_key]
    return MappingProxyType({**HANDLERS, api_key: replace(real, handle=handle(real.handle))})


def is_from_consumer(request: FetchRequest) -> bool:
    """Tell a consumer's fetch from a follower's."""
    state = request.replica_state
    return request.replica_id < 0 and (state is None or state.replica_id < 0)


def with_changed_fetches(
    change: Callable[[FetchResponse], FetchResponse],
) -> Mapping[int, ApiHandler]:
    """Return the handlers of a node that changes what it answers to consumers' fetches."""

    def changing(real: Handle) -> Handle:
        def handle(context: BrokerContext, header: RequestHeader, request: FetchRequest) -> Reply:
            reply = real(context, header, request)
            if not is_from_consumer(request):
                return reply
            if isinstance(reply, FetchResponse):
                return change(reply)
            return when_done(reply, change)  # type: ignore[arg-type]  # a fetch is answered now or by a Future

        return handle

    return with_handler(FetchRequest.API_KEY, changing)
