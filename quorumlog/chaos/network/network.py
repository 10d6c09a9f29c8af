"""All routes of a run: their forwarders, and the rules on their links."""

import asyncio
import random
from collections.abc import Iterable
from typing import Final

from quorumlog.chaos.faults.links import CLIENTS, Link, LinkRule, Reset
from quorumlog.chaos.network.answer_rules import AnswerBook
from quorumlog.chaos.network.forwarder import Forwarder, Target
from quorumlog.chaos.network.link_state import LinkState
from quorumlog.chaos.network.links import Route
from quorumlog.chaos.network.recorder import Recorder
from quorumlog.tasks import Tasks

_StateKey = tuple[str, str, str]  # source, destination, plane


class Network:
    """The forwarders of a run, made inside its event loop. `close` it once its tasks have ended."""

    def __init__(
        self, routes: Iterable[Route], *, seed: int, tasks: Tasks, recorder: Recorder | None = None
    ) -> None:
        """Bind every port. `recorder`: of the responses to clients. Raises PortInUse."""
        self._tasks: Final = tasks
        self._recorder: Final = recorder
        self._seed: Final = seed
        self.book: Final = AnswerBook()
        self._states: Final[dict[_StateKey, LinkState]] = {}
        self._targets: Final[dict[str, Target]] = {}
        self._resets: Final[dict[str, asyncio.Task[None]]] = {}
        self._forwarders: Final = [self._forwarder(route) for route in routes]

    def _forwarder(self, route: Route) -> Forwarder:
        target = self._targets.setdefault(route.target, Target(route.target, self._tasks))
        link = route.link
        forth = self._state(link.source, link.destination, link.plane)
        back = self._state(link.destination, link.source, link.plane)
        recorder = self._recorder if link.source == CLIENTS else None
        return Forwarder(route, target, forth, back, self._tasks, recorder=recorder)

    def _state(self, *key: str) -> LinkState:
        rng = random.Random(f"{self._seed} {key}")  # noqa: S311 - reproducible
        return self._states.setdefault((key[0], key[1], key[2]), LinkState(rng.random, self.book))

    async def start(self) -> None:
        """Check all targets; forwarders listen where a process listens at the target."""
        await asyncio.gather(*(target.check() for target in self._targets.values()))

    def impose(self, rule: LinkRule) -> None:
        """Impose the rule. Raises ValueError if it names an unknown party.

        A link between clients and a node that is no broker does not exist: the rule has no effect
        there.
        """
        parties = {
            party for source, destination, _ in self._states for party in (source, destination)
        }
        for link in rule.links:
            if not {link.source, link.destination} <= parties:
                raise ValueError(f"there is no link {link}")
        for link in rule.links:
            for state in self._states_of(link):
                state.impose(rule)
        self._update()
        if isinstance(rule.effect, Reset):
            self._resets[rule.id] = self._tasks.start(self._reset(rule, rule.effect))

    def lift(self, rule_id: str) -> None:
        """Lift the rule, if it is in force."""
        for state in self._states.values():
            state.lift(rule_id)
        if resets := self._resets.pop(rule_id, None):
            resets.cancel()
        self._update()

    def close(self) -> None:
        """Stop listening, and reset the remaining connections."""
        for forwarder in self._forwarders:
            forwarder.close()

    @property
    def queued_bytes(self) -> int:
        """The bytes queued in all connections."""
        return sum(forwarder.queued_bytes for forwarder in self._forwarders)

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
