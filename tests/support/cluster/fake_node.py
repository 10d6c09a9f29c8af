"""A node's program without a node: it locks, says that it is ready, and waits to be stopped.

FAKE_NODES="2:fails 3:deaf" makes node 2 end at once, and node 3 ignore SIGTERM.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from quorumlog.node.lock import hold
from quorumlog.node.parent import Parent


async def serve(parent: Parent, ready_fd: int | None, *, deaf: bool) -> None:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if deaf else stopping.set)
    parent.watch(stopping.set)
    if ready_fd is not None:
        os.write(ready_fd, json.dumps({"pid": os.getpid()}).encode() + b"\n")
        os.close(ready_fd)
    await stopping.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("properties", type=Path)
    parser.add_argument("--pid-file", type=Path)
    parser.add_argument("--temporary-directory", type=Path)
    for name in ("--ready-fd", "--parent-fd"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()
    node_id = given.properties.parent.name.removeprefix("node-")
    behaviour = dict(word.split(":") for word in os.environ.get("FAKE_NODES", "").split())
    if behaviour.get(node_id) == "fails":
        sys.stderr.write("quorumlog: it fails as it was told\n")
        return 1
    lock = hold(given.pid_file)
    parent = Parent(
        given.parent_fd, pid_file=given.pid_file, temporary_directory=given.temporary_directory
    )
    asyncio.run(serve(parent, given.ready_fd, deaf=behaviour.get(node_id) == "deaf"))
    parent.clean_up()
    lock.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
