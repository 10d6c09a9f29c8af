"""`python -m quorumlog.node NODE.properties`: run one node until SIGTERM."""

import gc
import sys

gc.disable()  # hardly anything of what is imported is garbage: to look for it is a tenth of a start

from quorumlog.node.main import main  # noqa: E402 - the collector must be off before

gc.enable()

sys.exit(main(sys.argv[1:]))
