"""Compare the logs of all replicas of a stopped cluster: committed records must be equal.

    python -m tools.compare_replicas DIR      DIR: of `quorumlog up`, or of a chaos run

`quorumlog.cluster.compared_replicas` has the rules. Records that cannot be compared for lack of a
high watermark count as a difference here. Exit status 1 if replicas differ, 64 if there are no
replicas to compare.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from quorumlog.cluster import compared_replicas

EXIT_USAGE: Final = 64


def compare(directory: Path) -> Mapping[str, str]:
    """Return the difference of the replicas of each compared partition, by name; "": equal."""
    outcomes = compared_replicas.compare(directory)
    return {name: one.how for name, one in outcomes.items() if one.is_compared}


def main(arguments: Sequence[str]) -> int:
    """Compare, and print the result; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    given = parser.parse_args(arguments)
    partitions = compared_replicas.replicas_of(given.directory)
    if not partitions:
        sys.stderr.write(f"{given.directory} has no partition with two replicas\n")
        return EXIT_USAGE
    differing = compared = 0
    for name, one in compared_replicas.compare(given.directory).items():
        compared += one.is_compared
        differing += one.is_compared and bool(one.how)
        how = one.how or f"equal ({one.same})"
        how = how if one.is_compared else f"not compared: {how}"
        sys.stdout.write(f"{name}: {len(partitions[name])} replicas: {how}\n")
    left = len(partitions) - compared
    others = f"; {left} were not compared" if left else ""
    sys.stdout.write(f"{compared - differing} of {compared} partitions agree{others}\n")
    if not compared:
        return EXIT_USAGE
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
