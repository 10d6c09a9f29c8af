"""The handlers of all APIs, by API key: the other modules of this package have them.

Only these APIs are advertised. `docs/protocol-support.md` lists them.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Final

from quorumlog.broker import handlers
from quorumlog.broker.server.api import ApiHandler


def _handlers() -> Mapping[int, ApiHandler]:
    modules = [one.name for one in iter_modules(handlers.__path__) if one.name != "registry"]
    found = [
        one
        for name in modules
        for one in vars(import_module(f"{handlers.__name__}.{name}")).values()
        if isinstance(one, ApiHandler)
    ]
    return MappingProxyType({handler.api_key: handler for handler in found})


HANDLERS: Final = _handlers()
