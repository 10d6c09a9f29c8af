"""Starts and controls the process that forwards the traffic between the parties of a run.

The process ends with its standard input, so it always ends with the run.
"""

import json
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from quorumlog.chaos.faults.links import LinkRule
from quorumlog.chaos.network.links import LinksFailed, Route, plain_routes, plain_rule

ANSWER_TIMEOUT_S: Final = 30.0
_END_TIMEOUT_S: Final = 5.0


class ProxyFailed(LinksFailed):
    """The forwarders have failed. One line to act on."""


class LinkProxy:
    """The forwarders of some routes. A context manager; its methods block for a moment.

    Entering binds every port and raises ProxyFailed if one is in use. A forwarder refuses
    connections until a process listens at its target.
    """

    def __init__(self, routes: Sequence[Route], *, seed: int = 0) -> None:
        self.routes: Final = tuple(routes)
        self._seed: Final = seed
        self._lock: Final = threading.Lock()  # one command at a time
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "quorumlog.chaos.network"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C at the terminal is ours to handle
        )
        try:
            self._ask({"routes": plain_routes(self.routes), "seed": self._seed})
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The id of the process, while it runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def impose(self, rule: LinkRule) -> None:
        """Impose a rule. Raises ProxyFailed, also for an unknown link."""
        self._ask({"impose": plain_rule(rule)})

    def lift(self, rule_id: str) -> None:
        """Lift a rule. Raises ProxyFailed."""
        self._ask({"lift": rule_id})

    def tallies(self) -> dict[str, dict[str, Any]]:
        """Return the counts of rules with answers, as AnswerBook. Raises ProxyFailed."""
        tallies: dict[str, dict[str, Any]] = self._ask({"tallies": True})["tallies"]
        return tallies

    def record_responses(self, file: Path, started_ns: int) -> None:
        """Write the responses with errors to clients into a new file. Raises ProxyFailed.

        `started_ns`: the monotonic time at which the history began.
        """
        self._ask({"record": str(file.resolve()), "started_ns": started_ns})

    def close(self) -> None:
        """End the process; every connection ends with it."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _ask(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ProxyFailed("the lab's forwarders do not run")
        with self._lock:
            try:
                process.stdin.write(json.dumps(command).encode() + b"\n")
                process.stdin.flush()
                if not select.select([process.stdout], [], [], ANSWER_TIMEOUT_S)[0]:
                    process.kill()  # its late answer would be read as that of the next command
                    raise ProxyFailed(f"the lab's forwarders do not answer: {ANSWER_TIMEOUT_S:g} s")
                line = process.stdout.readline()
            except OSError as error:
                raise ProxyFailed(f"the lab's forwarders have ended: {error}") from error
        if not line:
            raise ProxyFailed("the lab's forwarders have ended")
        answer: Mapping[str, Any] = json.loads(line)
        if reason := answer.get("error"):
            raise ProxyFailed(str(reason))
        return answer
