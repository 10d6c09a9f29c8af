"""`python -m quorumlog.node NODE.properties`: run one node until SIGTERM."""

import sys

from quorumlog.node.preloaded import main

sys.exit(main(sys.argv[1:]))
