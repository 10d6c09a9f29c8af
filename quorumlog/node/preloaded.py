"""Imports all modules of a node, at the least cost. Import this module first."""

import encodings.idna  # noqa: F401 - the first lookup of an address needs it
import gc
import os
from contextlib import suppress

from quorumlog.node.kept_code import kept_code

gc.disable()  # imports leave hardly any garbage: collections would take a tenth of a start
# aiohttp reads the system's certificates twice when it is imported; a node does not use TLS.
os.environ["SSL_CERT_FILE"] = os.devnull

with kept_code(__file__):
    from quorumlog.node.main import main

with suppress(ImportError):
    import uvloop  # noqa: F401 - the event loop needs it

__all__ = ["main"]

gc.freeze()  # all imports live as long as the process: the collector need not visit them
gc.enable()
