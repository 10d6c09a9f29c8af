"""Requests from one process to another, and the answers. Either may be lost or late."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.network import Network
from quorumlog.chaos.simulation.worlds.brokers.shard_host import Answer

TIMEOUT_US: Final = 1_200_000
REFUSED_US: Final = 1_000  # until it is clear that nobody can be asked


class Party(Protocol):
    """A process that asks or is asked. All that arrives goes through `take`."""

    @property
    def machine(self) -> Machine:
        """Its machine."""

    def take(self, action: Callable[..., None], *arguments: object) -> None:
        """Do what a message or a timer asks: now, or after a pause."""


class Messages:
    """Every request is answered once: by the other process, or by None when its time is over."""

    def __init__(self, network: Network) -> None:
        self._network: Final = network

    def ask(
        self,
        source: Party,
        target: Party | None,
        handle: Callable[[Answer], None],
        answered: Answer,
        *,
        may_come_late: bool,
        timeout_us: int = TIMEOUT_US,
    ) -> None:
        """Let `target` call `handle` with what sends the answer; None: nobody is there to ask.

        `may_come_late`: the request may arrive twice, and after its sender has given it up. Else
        it is lost with its connection: in the time of an answer that is not heard.
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
                for after_us in self._network.arrivals_us(other_id, own_id)[:1]:
                    asking.later(after_us, source.take, close, answer)

        def receive() -> None:
            is_alive = is_open and asking.incarnation == incarnation
            if is_alive or may_come_late:
                handle(reply)

        copies = self._network.arrivals_us(own_id, other_id)
        for after_us in copies if may_come_late else copies[:1]:
            target.machine.timeline.push(after_us, target.take, receive)
