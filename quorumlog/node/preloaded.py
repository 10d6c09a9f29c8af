"""Imports all that a node needs, at the least cost: before anything else of it is imported."""

import encodings.idna  # noqa: F401 - with the first address that is looked up
import gc
import os
from contextlib import suppress

gc.disable()  # hardly anything of what is imported is garbage: to look for it is a tenth of a start
# aiohttp reads the system's certificates twice when it is imported; a node speaks no TLS.
os.environ["SSL_CERT_FILE"] = os.devnull

from quorumlog.node.main import main  # noqa: E402 - what is above must be before

with suppress(ImportError):
    import uvloop  # noqa: F401 - with the event loop

__all__ = ["main"]

gc.freeze()  # all of it lives as long as the process: the collector need not visit it
gc.enable()
