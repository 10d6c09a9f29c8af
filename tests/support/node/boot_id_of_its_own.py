"""A node with the boot id in the file `boot_id` beside its properties: a machine that restarts."""

import sys
from pathlib import Path

from quorumlog.node.main import main
from quorumlog.node.substitutes import Substitutes

if __name__ == "__main__":
    boot_id_file = Path(sys.argv[1]).with_name("boot_id")
    sys.exit(main(sys.argv[1:], Substitutes(boot_id_file=boot_id_file)))
