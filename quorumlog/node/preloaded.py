"""Imports all modules of a node, at the least cost. Import this module first."""

import encodings.idna  # noqa: F401 - the first lookup of an address needs it
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from quorumlog.node.kept_code import kept_code
from quorumlog.node.openssl import mentions_tls, settings_texts

_OWN_HASHES = ("_md5", "_sha1", "_sha3", "_blake2")  # some systems build Python without


@contextmanager
def _without_openssl() -> Iterator[None]:
    """Let imports of OpenSSL's modules fail in the block: a node without TLS uses few hashes.

    With `ssl`, aiohttp makes two contexts with the system's certificates when it is imported.
    `hashlib` uses OpenSSL if it is there; its first hash touches 1 MB of that library.
    """
    names = ["ssl", *(["_hashlib"] if all(map(find_spec, _OWN_HASHES)) else [])]
    absent = [name for name in names if name not in sys.modules]
    sys.modules |= dict.fromkeys(absent)  # type: ignore[arg-type]  # None: its import fails
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


if mentions_tls(settings_texts(sys.argv[1:], os.environ)):
    import ssl  # noqa: F401 - before asyncio and aiohttp, which otherwise have no TLS

gc.disable()  # imports leave hardly any garbage: collections would take a tenth of a start

with kept_code(__file__), _without_openssl():
    from quorumlog.node.main import main

with suppress(ImportError):
    import uvloop  # noqa: F401 - the event loop needs it

__all__ = ["main"]

sys.path_importer_cache.clear()  # lists of directories: no import follows, or few
gc.freeze()  # all imports live as long as the process: the collector need not visit them
gc.enable()
