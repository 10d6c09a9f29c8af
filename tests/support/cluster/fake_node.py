"""A node's program without a node: it locks, reports that it is ready, and waits for a stop.

FAKE_NODES="2:fails 3:deaf 4:slow" makes node 2 end at once, node 3 ignore SIGTERM, and node 4 take
STEPS steps for its start and as many for its stop: a SIGUSR1 lets it go on to the next one.
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
from quorumlog.node.progress import note_end, progress_file

STEPS = 4


async def take_steps(pid_file: Path, what: str, resume: asyncio.Event) -> None:
    for step in range(STEPS):
        resume.clear()
        progress_file(pid_file).write_text(f"{what}: {step}")
        await resume.wait()


async def serve(
    parent: Parent, ready_fd: int | None, pid_file: Path, behaviour: str | None
) -> None:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    is_deaf, is_slow, resume = behaviour == "deaf", behaviour == "slow", asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if is_deaf else stopping.set)
    loop.add_signal_handler(signal.SIGUSR1, resume.set)
    parent.watch(stopping.set)
    if is_slow:
        await take_steps(pid_file, "starting", resume)
    if ready_fd is not None:
        os.write(ready_fd, json.dumps({"pid": os.getpid()}).encode() + b"\n")
        os.close(ready_fd)
    await stopping.wait()
    if is_slow:
        await take_steps(pid_file, "stopping", resume)


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
    asyncio.run(serve(parent, given.ready_fd, given.pid_file, behaviour.get(node_id)))
    note_end(progress_file(given.pid_file), 0)
    parent.clean_up()
    lock.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
