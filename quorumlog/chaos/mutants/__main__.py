"""A node with a planted bug: the first argument names it.

`quorumlog chaos run --mutant cuts_too_much --fault pause_kill` runs this program as each node.
"""

import sys
from dataclasses import replace

from quorumlog.chaos.mutants.registry import node_mutant
from quorumlog.native import lane
from quorumlog.node.main import main
from quorumlog.storage.io.disk import RealDisk

if __name__ == "__main__":
    lane.turn_off("a mutant replaces functions of Python")
    mutant = node_mutant(sys.argv[1])
    dependencies = replace(mutant.dependencies, open_disk=lambda: mutant.disk(RealDisk()))
    sys.exit(main(sys.argv[2:], dependencies))
