"""Imports all modules of a node, at the least cost. Import this module first."""

import encodings.idna  # noqa: F401 - the first lookup of an address needs it
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from types import ModuleType

from quorumlog.node.kept_code import kept_code
from quorumlog.node.openssl import mentions_tls, settings_texts

_OWN_HASHES = ("_md5", "_sha1", "_sha3", "_blake2")  # some systems build Python without


class _StandIn(ModuleType):
    """Has every name, and nothing of use: for an import that copies names and does not use them."""

    def __getattr__(self, name: str) -> object:
        """Return a number for a constant, and a class for any other name."""
        return 0 if name.isupper() else _Nothing


class _Nothing(Exception):
    """In the place of classes, some of which are errors, and of functions."""


@contextmanager
def _stand_ins(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Let imports find these modules in the block unless they are loaded; None: there is none.

    A node without TLS saves 4 MB without OpenSSL. With `ssl`, aiohttp makes two contexts with the
    system's certificates when it is imported. `hashlib` uses OpenSSL if it is there; a node without
    TLS uses few hashes.
    """
    absent = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules |= absent  # type: ignore[arg-type]  # None: its import fails
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


if mentions_tls(settings_texts(sys.argv[1:], os.environ)):
    import ssl  # noqa: F401 - before asyncio and aiohttp, which otherwise have no TLS

gc.disable()  # imports leave hardly any garbage: collections would take a tenth of a start

_metadata = "importlib.metadata"  # crc32c reads its own version by it; with zipfile, csv: 1 MB
with suppress(Exception), _stand_ins({_metadata: _StandIn(_metadata)}):
    import crc32c  # noqa: F401 - if it fails, the next import has the real module

_absent = {"ssl": None, **({"_hashlib": None} if all(map(find_spec, _OWN_HASHES)) else {})}
with kept_code(__file__), _stand_ins(_absent):
    from quorumlog.node.main import main

with suppress(Exception), _stand_ins({"ssl": _StandIn("ssl")}):
    import uvloop  # noqa: F401 - it copies names of `ssl`; if it fails, main repeats it

__all__ = ["main"]

sys.path_importer_cache.clear()  # lists of directories: no import follows, or few
gc.freeze()  # all imports live as long as the process: the collector need not visit them
gc.enable()
