"""The handlers of all APIs, by API key: the other modules of this package have them.

Only these APIs are advertised. `docs/protocol-support.md` lists them. A module of RARE is imported
with the first request of its APIs, as its messages are: most brokers receive none, and save the
memory. An import that fails closes the connection; the next request repeats it.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any, Final

from quorumlog.broker import handlers
from quorumlog.broker.server.api import ApiHandler, BrokerContext, Reply
from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.schemas import RequestHeader

RARE: Final[Mapping[str, Iterable[int]]] = MappingProxyType(
    {
        "delegation_tokens": range(38, 42),
        "sasl": (17, 36),
        "share_group_states": range(83, 88),
        "share_groups": (76, 77, 78, 79, 90, 91, 92),
        "streams_groups": (88, 89),
    }
)
"""By module, its API keys: APIs that this broker refuses, in all versions that have messages."""


@cache
def handlers_of(module: str) -> Mapping[int, ApiHandler]:
    """Import a module of this package; return its handlers. Raises ImportError, OSError."""
    found = vars(import_module(f"{handlers.__name__}.{module}")).values()
    return {one.api_key: one for one in found if isinstance(one, ApiHandler)}


def _rare(module: str, api_key: int) -> ApiHandler:
    def handle(context: BrokerContext, header: RequestHeader, request: Any) -> Reply:
        return handlers_of(module)[api_key].handle(context, header, request)

    versions = APIS[api_key].versions
    return ApiHandler(
        api_key=api_key,
        min_version=versions.start,
        max_version=versions.stop - 1,
        handle=handle,
        advertised_min_version=versions.start,
    )


def _handlers() -> Mapping[int, ApiHandler]:
    found: dict[int, ApiHandler] = {}
    for module in (one.name for one in iter_modules(handlers.__path__)):
        if module in RARE:
            found |= {key: _rare(module, key) for key in RARE[module]}
        elif module != "registry":
            found |= handlers_of(module)
    return MappingProxyType(found)


HANDLERS: Final = _handlers()
