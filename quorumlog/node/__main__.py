"""`python -m quorumlog.node NODE.properties`: run one node until SIGTERM."""

import gc
import os
import sys

gc.disable()  # hardly anything of what is imported is garbage: to look for it is a tenth of a start
# aiohttp reads the system's certificates twice when it is imported; a node speaks no TLS.
os.environ["SSL_CERT_FILE"] = os.devnull

from quorumlog.node.main import main  # noqa: E402 - what is above must be before

gc.freeze()  # all of it lives as long as the process: the collector need not visit it
gc.enable()

sys.exit(main(sys.argv[1:]))
