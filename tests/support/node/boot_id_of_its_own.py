"""A node whose machine is what the file `boot_id` beside its properties says: one that restarts."""

import sys
from pathlib import Path

from quorumlog.node.assemble import NodeParts
from quorumlog.node.main import main

if __name__ == "__main__":
    boot_id_file = Path(sys.argv[1]).with_name("boot_id")
    sys.exit(main(sys.argv[1:], NodeParts(boot_id_file=boot_id_file)))
