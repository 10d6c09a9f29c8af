"""A mirror as a process of its own, which ends with the run: `python -m` runs this module.

Standard input has the settings as a line of JSON, and stays open while the run lives. The argument
names a planted bug.
"""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from quorumlog.mirror import MirrorSettings

LOG_FILE: Final = "mirrors.log"
"""In the directory of a run: the reports of all its mirrors, and the errors that ended them."""
_MODULE: Final = "quorumlog.chaos.run.mirror_process"


class LocalMirror:
    """A mirror's process on this machine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process: Final = process

    @property
    def failure(self) -> str | None:
        """The exit status; None: it runs."""
        status = self._process.returncode
        return None if status is None else f"exit status {status}"

    async def kill(self) -> None:
        """SIGKILL; also of a mirror that is paused, or has ended."""
        self._signal(SIGKILL)
        await self._process.wait()

    async def pause(self) -> None:
        """SIGSTOP."""
        self._signal(SIGSTOP)

    async def resume(self) -> None:
        """SIGCONT."""
        self._signal(SIGCONT)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended
            self._process.send_signal(number)


class MirrorLauncher:
    """Starts the mirrors of a run, with the planted bug `mutant`."""

    def __init__(self, directory: Path, mutant: str | None = None) -> None:
        self._log: Final = directory / LOG_FILE
        self._arguments: Final = [] if mutant is None else [mutant]

    async def start(self, settings: "MirrorSettings") -> LocalMirror:
        """Start a mirror. Raises OSError."""
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", _MODULE, *self._arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        if process.stdin is not None:
            process.stdin.write(json.dumps(asdict(settings)).encode() + b"\n")
        return LocalMirror(process)


def main(arguments: Sequence[str]) -> int:
    """Run a mirror until it is fenced, or an error stays; return the exit status."""
    from quorumlog.client import KafkaError
    from quorumlog.mirror import Mirror, MirrorError, MirrorSettings
    from quorumlog.mirror.dependencies import DEPENDENCIES

    dependencies = DEPENDENCIES
    if arguments:
        from quorumlog.chaos.mutants.registry import node_mutant

        dependencies = node_mutant(arguments[0]).mirror
    standard_input = open(0, "rb", buffering=0)  # noqa: SIM115 - it is open until the end
    given: dict[str, Any] = json.loads(standard_input.readline())
    given |= {name: tuple(one) for name, one in given.items() if isinstance(one, list)}
    settings = MirrorSettings(**given)
    threading.Thread(target=_end_with_the_run, args=(standard_input,), daemon=True).start()

    async def run() -> None:
        async with Mirror(settings, dependencies=dependencies) as mirror:
            await mirror.run()

    try:
        asyncio.run(run())
    except (KafkaError, MirrorError) as error:
        sys.stderr.write(f"{os.getpid()}: {type(error).__name__}: {error}\n")
        return 1
    return 0


def _end_with_the_run(standard_input: FileIO) -> None:
    standard_input.read(1)  # returns when the run has closed its end
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
