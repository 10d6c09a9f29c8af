"""The process of all forwarders of a run: `python -m quorumlog.chaos.network`.

It is told the routes and then rules by lines of JSON on its standard input, and answers each with a
line. It ends with its input, so it never outlives the run.
"""

import asyncio
import json
import random
import resource
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from quorumlog.chaos.faults.links import Link, LinkRule, Reset
from quorumlog.chaos.network.commands import routes_of, rule_of
from quorumlog.chaos.network.forwarder import Forwarder, PortInUse, Target
from quorumlog.chaos.network.link_state import LinkState
from quorumlog.chaos.network.route import Route
from quorumlog.tasks import Tasks

_STATE = tuple[str, str, str]


class Network:
    """All routes of a run, and the rules on their links."""

    def __init__(self, routes: Iterable[Route], *, seed: int, tasks: Tasks) -> None:
        """Bind every port. Raises PortInUse."""
        self._tasks: Final = tasks
        self._seed: Final = seed
        self._states: Final[dict[_STATE, LinkState]] = {}
        self._targets: Final[dict[str, Target]] = {}
        self._resets: Final[dict[str, asyncio.Task[None]]] = {}
        self._forwarders: Final = [self._forwarder(route) for route in routes]

    def _forwarder(self, route: Route) -> Forwarder:
        target = self._targets.setdefault(route.target, Target(route.target, self._tasks))
        link = route.link
        forth = self._state(link.source, link.destination, link.plane)
        back = self._state(link.destination, link.source, link.plane)
        return Forwarder(route, target, forth, back, self._tasks)

    def _state(self, *key: str) -> LinkState:
        rng = random.Random(f"{self._seed} {key}")  # noqa: S311 - reproducible
        return self._states.setdefault((key[0], key[1], key[2]), LinkState(rng.random))

    async def start(self) -> None:
        """Listen, wherever a process does at the target."""
        await asyncio.gather(*(target.check() for target in self._targets.values()))

    def impose(self, rule: LinkRule) -> None:
        """Let the rule hold. Raises ValueError if it names a link that is not there."""
        for link in rule.links:
            if not self._states_of(link):
                raise ValueError(f"there is no link {link}")
        for link in rule.links:
            for state in self._states_of(link):
                state.impose(rule)
        self._update()
        if isinstance(rule.effect, Reset):
            self._resets[rule.id] = self._tasks.start(self._reset(rule, rule.effect))

    def lift(self, rule_id: str) -> None:
        """Take the rule back, if it holds."""
        for state in self._states.values():
            state.lift(rule_id)
        if resets := self._resets.pop(rule_id, None):
            resets.cancel()
        self._update()

    def _states_of(self, link: Link) -> list[LinkState]:
        return [
            state
            for (source, destination, plane), state in self._states.items()
            if (source, destination) == (link.source, link.destination)
            and link.plane in {"all", plane}
        ]

    def _update(self) -> None:
        for forwarder in self._forwarders:
            forwarder.update()

    async def _reset(self, rule: LinkRule, effect: Reset) -> None:
        links = {(link.source, link.destination) for link in rule.links}
        while True:
            for forwarder in self._forwarders:
                link = forwarder.route.link
                if (link.source, link.destination) in links:
                    forwarder.reset()
            if not effect.every_us:
                return
            await asyncio.sleep(effect.every_us / 1_000_000)


async def _serve(network: Network, lines: asyncio.StreamReader) -> None:
    while line := await lines.readline():
        command: Mapping[str, Any] = json.loads(line)
        try:
            if "impose" in command:
                network.impose(rule_of(command["impose"]))
            else:
                network.lift(command["lift"])
        except ValueError as error:
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
    document: Mapping[str, Any] = json.loads(await lines.readline())
    failed: asyncio.Future[None] = loop.create_future()

    def fail(error: BaseException) -> None:
        if not failed.done():
            failed.set_exception(error)

    tasks = Tasks(fail)
    try:
        network = Network(routes_of(document["routes"]), seed=document["seed"], tasks=tasks)
    except PortInUse as error:
        _say({"error": str(error)})
        return
    await network.start()
    _say({})
    serving = asyncio.ensure_future(_serve(network, lines))
    await asyncio.wait({serving, failed}, return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    if failed.done():
        failed.result()


if __name__ == "__main__":
    asyncio.run(main())
