"""Requests from one process to another, and their responses. Both may be lost or late."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.network import Network
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.brokers.shard_host import Answer

TIMEOUT_US: Final = 1_200_000
ANSWERS_STRAGGLE: Final = 0.2  # share of the responses between brokers, in runs with stragglers
COPIES_STRAGGLE: Final = 0.5  # share of the requests with a very late copy
STRAGGLING_US: Final = 1_000_000
REFUSED_US: Final = 1_000  # until a request without a target fails


class Party(Protocol):
    """A process that sends or receives requests. All its messages go through `take`."""

    @property
    def machine(self) -> Machine:
        """Its machine."""

    def take(self, action: Callable[..., None], *arguments: object) -> None:
        """Run the action of a message or a timer: now, or after a pause."""


class Messages:
    """Sends requests. Each has one answer: the response, or None after its timeout."""

    def __init__(self, network: Network, stragglers: Rng | None) -> None:
        """`stragglers`: draws the very late messages between brokers; None: there are none."""
        self._network: Final = network
        self._stragglers: Final = stragglers

    def _straggling_us(self, share: float) -> int:
        """Return the extra delay of a message between brokers."""
        rng = self._stragglers
        if rng is None or self._network.is_calm or rng.random() >= share:
            return 0
        return rng.randrange(STRAGGLING_US)

    def _copies_us(self, own_id: int, other_id: int, *, may_straggle: bool) -> list[int]:
        """Return the delay of each copy of a request, the earliest first."""
        copies = self._network.arrivals_us(own_id, other_id)
        late_us = self._straggling_us(COPIES_STRAGGLE) if may_straggle and copies else 0
        return [*copies, copies[0] + late_us] if late_us else copies

    def ask(
        self,
        source: Party,
        target: Party | None,
        handle: Callable[[Answer], None],
        answered: Answer,
        *,
        may_come_late: bool,
        timeout_us: int = TIMEOUT_US,
        may_straggle: bool = False,
    ) -> None:
        """Let `target` call `handle` with a function that sends the response.

        `target` None: the request fails, and `answered` receives None.
        `may_come_late`: the request may arrive twice, and after its sender has given it up. Else
        it is lost with its connection: no later than its timeout.
        `may_straggle`: for a request between brokers. Its response, or a copy of it if it may come
        late, can be in flight for long while later messages overtake it.
        """
        asking, is_open = source.machine, True
        incarnation = asking.incarnation

        def close(answer: Any) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                answered(answer)

        if target is None:
            asking.later(REFUSED_US, source.take, close, None)
            return
        asking.later(timeout_us, source.take, close, None)
        own_id, other_id = asking.node_id, target.machine.node_id

        def reply(answer: Any) -> None:
            if asking.incarnation == incarnation:
                late_us = self._straggling_us(ANSWERS_STRAGGLE) if may_straggle else 0
                for after_us in self._network.arrivals_us(other_id, own_id)[:1]:
                    asking.later(after_us + late_us, source.take, close, answer)

        def receive() -> None:
            is_alive = is_open and asking.incarnation == incarnation
            if is_alive or may_come_late:
                handle(reply)

        copies = self._copies_us(own_id, other_id, may_straggle=may_straggle)
        for after_us in copies if may_come_late else copies[:1]:
            target.machine.timeline.push(after_us, target.take, receive)
