"""A node with the boot id in the file `boot_id` beside its properties: a machine that restarts."""

import sys
from pathlib import Path

from quorumlog.node.dependencies import NodeDependencies
from quorumlog.node.main import main

if __name__ == "__main__":
    boot_id_file = Path(sys.argv[1]).with_name("boot_id")
    sys.exit(main(sys.argv[1:], NodeDependencies(boot_id_file=boot_id_file)))
