"""The process of all forwarders of a run: `python -m quorumlog.chaos.network`.

It reads the routes, then rules and the file of responses as lines of JSON from its standard input,
and answers each with a line. It ends with its input, so it never outlives the run.
"""

import asyncio
import json
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from quorumlog.chaos.network.forwarder import PortInUse
from quorumlog.chaos.network.links import routes_of, rule_of
from quorumlog.chaos.network.network import Network
from quorumlog.chaos.network.recorder import Recorder
from quorumlog.tasks import Tasks


async def _next_order(lines: asyncio.StreamReader) -> Mapping[str, Any] | None:
    """Return the next command; None if the input has ended, even within a line."""
    line = await lines.readline()
    if not line.endswith(b"\n"):
        return None
    order: Mapping[str, Any] = json.loads(line)
    return order


async def _serve(network: Network, recorder: Recorder, lines: asyncio.StreamReader) -> None:
    while (command := await _next_order(lines)) is not None:
        try:
            if "impose" in command:
                network.impose(rule_of(command["impose"]))
            elif "record" in command:
                recorder.start(Path(command["record"]), command["started_ns"])
            elif "tallies" in command:
                _say({"tallies": network.book.tallies()})
                continue
            else:
                network.lift(command["lift"])
        except (OSError, ValueError) as error:
            _say({"error": str(error)})
        else:
            _say({})


def _say(answer: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Serve until the standard input ends."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    document = await _next_order(lines)
    if document is None:
        return  # the run was interrupted before it began
    failed: asyncio.Future[None] = loop.create_future()

    def fail(error: BaseException) -> None:
        if not failed.done():
            failed.set_exception(error)

    tasks = Tasks(fail)
    recorder = Recorder(failed=lambda error: loop.call_soon_threadsafe(fail, error))
    routes = routes_of(document["routes"])
    try:
        network = Network(routes, seed=document["seed"], tasks=tasks, recorder=recorder)
    except PortInUse as error:
        _say({"error": str(error)})
        return
    await network.start()
    _say({})
    serving = asyncio.ensure_future(_serve(network, recorder, lines))
    await asyncio.wait({serving, failed}, return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    recorder.close()
    if failed.done():
        failed.result()


if __name__ == "__main__":
    asyncio.run(main())
