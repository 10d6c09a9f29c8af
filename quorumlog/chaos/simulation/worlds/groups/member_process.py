"""The process of a group member, on a machine of its own: time, pauses, requests."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.brokers.shard_host import Answer
from quorumlog.chaos.simulation.worlds.groups.cluster import Cluster
from quorumlog.chaos.simulation.worlds.groups.coordinator_host import CoordinatorHost

GROUP_ID: Final = "group"
REBALANCE_MS: Final = 1_500
HEARTBEAT_US: Final = 250_000
REQUEST_TIMEOUT_US: Final = 600_000
JOIN_TIMEOUT_US: Final = 2_500_000
BACKOFF_US: Final = 100_000


class MemberProcess:
    """A Process. Subclasses choose the requests and handle the responses.

    It has at most one request about its membership under way. A timeout closes the connection of
    the request: a broker drops it when it arrives later.
    """

    def __init__(self, machine: Machine, cluster: Cluster, rng: Rng) -> None:
        self._machine: Final = machine
        self._cluster: Final = cluster
        self._rng: Final = rng
        self._names = 0  # member ids, tags of assignments and commits: each is unique
        self._inbox: Final = deque[tuple[Callable[..., None], tuple[object, ...]]]()
        self._forget_requests()

    def _forget_requests(self) -> None:
        self._coordinator: int | None = None
        self._control = 0  # the number of the connection
        self._is_asking = False
        self._inbox.clear()

    def describe(self) -> str:
        """Return the state, for the report of a world that does not settle."""
        return f"{self._machine.node_id}: {self._shown()}"

    # --- methods for subclasses ---

    def _shown(self) -> str:
        """Return the state, for the trace."""
        raise NotImplementedError

    def _may_act(self) -> bool:
        """Return whether the periodic actions happen now."""
        return True

    def _look_elsewhere(self) -> None:
        """Go on after a request timed out."""
        raise NotImplementedError

    def _serve(self, host: CoordinatorHost, request: Any, answer: Answer) -> None:
        """Pass an arrived request to the coordinator. Runs on the broker."""
        host.ask(request, answer)

    # --- time ---

    def stopped(self, *, loses_power: bool) -> None:
        """Do nothing: the coordinator removes the member when its session ends."""

    def resumed(self) -> None:
        """Run the steps that arrived during the pause."""
        while self._inbox and self._machine.is_up and not self._machine.is_paused:
            action, arguments = self._inbox.popleft()
            self._step(action, arguments)

    def _take(self, action: Callable[..., None], *arguments: object) -> None:
        if self._machine.is_paused or self._inbox:
            self._inbox.append((action, arguments))
        else:
            self._step(action, arguments)

    def _step(self, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        before = self._shown()
        try:
            action(*arguments)
        finally:
            state = f"{before} => {self._shown()}"
            step = f"{action.__name__.strip('_')} {state}".encode()
            now_us = self._machine.timeline.now_us
            shown = tuple(argument for argument in arguments if not callable(argument))
            self._machine.trace.stepped(
                now_us, self._machine.node_id, step, _render, step.decode(), shown
            )

    def _every(self, period_us: int, action: Callable[[], None]) -> None:
        def again() -> None:
            if self._may_act():
                self._take(action)
            self._machine.later(self._rng.randrange(period_us // 2, 3 * period_us // 2), again)

        self._machine.later(period_us, again)

    def _new_name(self) -> str:
        self._names += 1
        return f"<{self._machine.node_id}.{self._names}>"

    # --- requests ---

    def _ask(
        self,
        request: Any,
        answered: Callable[[Any], None],
        timeout_us: int = REQUEST_TIMEOUT_US,
    ) -> None:
        """Send a request about the membership. A later one discards its response."""
        self._control += 1
        connection, self._is_asking = self._control, True
        if self._coordinator is None:
            self._coordinator = self._cluster.find_coordinator(self._rng)
        if self._coordinator is None:
            timeout_us = BACKOFF_US
        self._machine.later(timeout_us, self._take, self._timed_out, connection)

        def is_open() -> bool:
            return self._control == connection

        def arrived(answer: Any) -> None:
            if is_open():
                self._control += 1
                self._is_asking = False
                answered(answer)

        self._send(request, is_open, arrived)

    def _timed_out(self, connection: int) -> None:
        if connection == self._control:
            self._hang_up()
            self._look_elsewhere()

    def _hang_up(self) -> None:
        """Give up the request that is under way, if there is one."""
        self._control += 1
        self._is_asking = False

    def _send(
        self, request: Any, is_open: Callable[[], bool], answered: Callable[[Any], None]
    ) -> None:
        """Send a request to the coordinator."""
        target = self._coordinator
        if target is None:
            return  # no coordinator was found: the request will time out
        own_id, incarnation = self._machine.node_id, self._machine.incarnation
        host, arrivals_us = self._cluster.hosts[target], self._cluster.arrivals_us

        def reply(answer: Any) -> None:
            if self._machine.incarnation == incarnation:
                for after_us in arrivals_us(target, own_id)[:1]:  # TCP: no second copy
                    self._machine.later(after_us, self._take, answered, answer)

        def received() -> None:
            if self._machine.incarnation == incarnation and is_open():
                self._serve(host, request, reply)

        for after_us in arrivals_us(own_id, target)[:1]:
            take = self._cluster.nodes[target].take
            self._machine.timeline.push(after_us, take, received)


def _render(step: str, arguments: tuple[object, ...]) -> str:
    return " ".join([step, *(str(argument)[:200] for argument in arguments)])
