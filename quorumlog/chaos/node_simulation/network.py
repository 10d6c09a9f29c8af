"""An in-memory network: hosts, links, listeners, and the begin and end of connections.

A direction of a connection is a FIFO of segments: bytes, or FIN or RST. A cut link holds segments
back, as TCP does, and delivers them when it is healed; connection attempts wait as well. A process
that dies closes its connections. A machine without power sends nothing; once its power is back, it
resets its old connections.
"""

import asyncio
import contextvars
import errno
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, Final

from quorumlog.chaos.faults.links import LinkRule, Plane
from quorumlog.chaos.network.answer_rules import AnswerBook
from quorumlog.chaos.network.exchange import Exchange
from quorumlog.chaos.network.link_state import LinkState
from quorumlog.chaos.network.splitters import Message, Piece
from quorumlog.chaos.node_simulation.endpoint import RST, Endpoint, Segment, Stream
from quorumlog.chaos.node_simulation.loop import SimulatedLoop
from quorumlog.chaos.node_simulation.process import OWNER, Process
from quorumlog.chaos.node_simulation.sockets import SimulatedServer, SimulatedSocket
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.oracles.exchanges import Conversation

BASE_LATENCIES_S: Final = (0.0001, 0.0003, 0.001, 0.005)
RETRY_S_MAX: Final = 0.2  # the delay of TCP's retransmission after a cut


class Link:
    """One direction between two hosts, for the connections to one port. `now_s` is true time.

    Its rules are the same as in the forwarders between real processes.
    """

    def __init__(
        self, source: str, target: str, port: int, seed: int, book: AnswerBook | None = None
    ) -> None:
        """`book`: of the rules with answers, which the links of a network share."""
        self.source: Final = source
        self.target: Final = target
        self.port: Final = port
        self.held: Final = deque[Callable[[], None]]()
        self._rng: Final[Random] = seeded(f"link {source} {target} {port}", seed)
        self.rules: Final = LinkState(self._rng.random, book)
        self._base_s: Final = self._rng.choice(BASE_LATENCIES_S)
        self._free_at_s = 0.0  # if a rule limits the rate

    def latency_s(self, size: int, now_s: float) -> float:
        """Draw the latency of a segment of `size` bytes, in s."""
        jitter = self._rng.random()
        takes_s = self._base_s * (0.8 + jitter * jitter)
        rules = self.rules
        if not rules.is_plain:
            takes_s += rules.delay_s()
            if rules.bytes_per_s:
                self._free_at_s = max(self._free_at_s, now_s) + size / rules.bytes_per_s
                takes_s += self._free_at_s - now_s
        return takes_s

    def retry_s(self) -> float:
        """Draw the delay after which held segments are sent again on a healed link, in s."""
        return self._rng.random() * RETRY_S_MAX


_FIRST_PORT: Final = 40_000
_NOWHERE: Final = "0.0.0.0"  # noqa: S104 - the host without a process

Carried = Callable[[float, str, bytes], None]
"""Called with (true time, addresses of an arrived segment, its bytes), for a run's digest."""

Overhear = Callable[[tuple[str, int], tuple[str, int]], Conversation | None]
"""Called with (client, broker) of a new connection; returns the reader of its bytes, or None."""


class Network:
    """The hosts and links of one run.

    Invariants:
      1. Segments of one direction arrive in the order in which they were sent, each once.
      2. A host without power receives no segment, and its held segments are lost.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        seed: int,
        carried: Carried,
        planes: Mapping[int, Plane] | None = None,
    ) -> None:
        """`planes`: the protocol by port, where rules may apply to single messages."""
        self._planes: Final = planes or {}
        self.book: Final = AnswerBook()
        self.loop: Final = loop
        self.overhear: Overhear = lambda _client, _broker: None
        self.bytes = 0
        self._seed: Final = seed
        self._carried: Final = carried
        self._links: Final[dict[tuple[str, str, int], Link]] = {}
        self._rules: Final[dict[str, tuple[LinkRule, Callable[[Link], bool]]]] = {}
        self._listeners: Final[dict[tuple[str, int], SimulatedServer]] = {}
        self._endpoints: Final[dict[Process | None, dict[Endpoint, None]]] = {}
        self._dark: Final[set[str]] = set()
        self._next_port = _FIRST_PORT

    # --- rules ---

    def impose(self, rule: LinkRule, concerns: Callable[[Link], bool]) -> None:
        """Impose a rule on all links that it concerns, future links included."""
        self._rules[rule.id] = (rule, concerns)
        for link in self._links.values():
            if concerns(link):
                link.rules.impose(rule)

    def holds(self, rule_id: str) -> bool:
        """Return whether a rule is in force."""
        return rule_id in self._rules

    def lift(self, rule_id: str) -> None:
        """End a rule. Segments that no other rule holds back arrive soon."""
        self._rules.pop(rule_id, None)
        for link in self._links.values():
            if link.rules.lift(rule_id) and not link.rules.is_cut:
                after_s = link.retry_s()
                held = [*link.held]
                link.held.clear()
                for send in held:
                    self.loop.in_kernel(after_s, send)

    def reset(self, concerns: Callable[[Link], bool]) -> None:
        """Reset every connection that was opened over one of these links."""
        for owned in [*self._endpoints.values()]:
            for endpoint in [*owned]:
                if endpoint.has_dialled and concerns(self.link_of(endpoint)):
                    _reset(endpoint)

    def link(self, source: str, target: str, port: int) -> Link:
        """Return the link for the connections from or to this port."""
        link = self._links.get((source, target, port))
        if link is None:
            link = Link(source, target, port, self._seed, self.book)
            self._links[source, target, port] = link
            for rule, concerns in self._rules.values():
                if concerns(link):
                    link.rules.impose(rule)
        return link

    def link_of(self, endpoint: Endpoint) -> Link:
        """Return the link that carries this endpoint's segments."""
        return self.link(endpoint.here[0], endpoint.there[0], endpoint.port)

    # --- listeners ---

    def socket(self) -> SimulatedSocket:
        """Return a socket that is neither bound nor connected."""
        return SimulatedSocket(self._take_address)

    def bound(self, host: str, port: int) -> SimulatedSocket:
        """Return a bound socket. Raises OSError (EADDRINUSE) if the address has a listener."""
        bound = self.socket()
        bound.bind((host, port))
        return bound

    def _take_address(self, address: tuple[str, int]) -> tuple[str, int]:
        host, port = address
        if port == 0:
            self._next_port += 1
            return host, self._next_port
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return address

    def listen(self, factory: Any, sock: SimulatedSocket) -> asyncio.AbstractServer:
        """Accept connections on a bound socket, in the running process."""
        server = SimulatedServer(
            factory, sock, OWNER.get(), contextvars.copy_context(), self._close_listener
        )
        self._listeners[sock.address] = server
        return server

    def _close_listener(self, server: SimulatedServer) -> None:
        address = server.sockets[0].address
        if self._listeners.get(address) is server:
            del self._listeners[address]

    # --- connections ---

    async def connect(self, host: str, port: int) -> Endpoint:
        """Return a connected endpoint. Raises ConnectionRefusedError."""
        process = OWNER.get()
        self._next_port += 1
        here = (_NOWHERE if process is None else process.host, self._next_port)
        answer: asyncio.Future[Endpoint] = self.loop.create_future()
        link = self.link(here[0], host, port)
        self._pass_on(link, 0, partial(self._syn, here, (host, port), process, answer))
        return await answer

    async def attach(self, endpoint: Endpoint, factory: Callable[[], Any]) -> Any:
        """Create the protocol of a connected endpoint, and return it."""
        protocol = factory()
        endpoint.attach(protocol, contextvars.copy_context())
        return protocol

    def _syn(
        self,
        here: tuple[str, int],
        there: tuple[str, int],
        process: Process | None,
        answer: "asyncio.Future[Endpoint]",
    ) -> None:
        if there[0] in self._dark or (process is not None and not process.is_alive):
            return
        server = self._listeners.get(there)
        back = self.link(there[0], here[0], there[1])
        self._carried(self.loop.now_s, f"syn {here} {there} {server is not None}", b"")
        forth = self.link(here[0], there[0], there[1])
        if server is None or forth.rules.refuses:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {there}")
            self._pass_on(back, 0, partial(_answer, answer, refused))
            return
        near = Endpoint(self, process, here, there, there[1])
        far = Endpoint(self, server.process, there, here, there[1])
        near.peer, far.peer = far, near
        if (plane := self._planes.get(there[1])) is not None:
            self._apply_rules(near, far, Exchange(plane, forth.rules))
        if (conversation := self.overhear(here, there)) is not None:
            near.arrives, far.leaves = conversation.arrives, conversation.leaves
        for endpoint in (near, far):
            self._endpoints.setdefault(endpoint.process, {})[endpoint] = None
        far.attach(None, server.context.copy(), server.factory)
        self._pass_on(back, 0, partial(_answer, answer, near))

    def _apply_rules(self, near: Endpoint, far: Endpoint, exchange: Exchange) -> None:
        """Apply the rules on requests to a connection that `near` has dialled."""
        late_s = partial(_reply_late_s, near, exchange)
        if not exchange.is_kafka:
            near.stream = Stream(exchange.requests, exchange.request_late_s)
            far.stream = Stream(exchange.replies, late_s)
            return

        def shape(pieces: list[Piece]) -> list[Piece]:
            passed = exchange.shape_requests(pieces)
            for answer in exchange.due_replies():
                far.unread_bytes += len(answer.content)
                self._send(far, bytes(answer.content))
            if exchange.resets:
                _reset(near)
            return passed

        held = exchange.held_requests
        near.stream = Stream(exchange.requests, exchange.request_late_s, shape, held)
        far.stream = Stream(exchange.replies, late_s, exchange.shape_replies, exchange.held_replies)

    def _pass_on(self, link: Link, size: int, arrive: Callable[[], None]) -> None:
        """Call `arrive` after the latency of the link, or after the link is healed."""
        if link.rules.is_cut:
            link.held.append(partial(self._pass_on, link, size, arrive))
        else:
            self.loop.in_kernel(link.latency_s(size, self.loop.now_s), arrive)

    def send(self, source: Endpoint, segment: Segment) -> None:
        """Send one segment after the segments before it, under the rules on messages."""
        if source.leaves is not None and isinstance(segment, bytes):
            source.leaves(segment)
        stream = source.stream
        if stream is None:
            self._send(source, segment)
        elif isinstance(segment, bytes):
            for late_s, content in stream.feed(segment):
                if late_s:
                    later_s = self.loop.now_s + late_s
                    source.last_arrival_s = max(source.last_arrival_s, later_s)
                self._send(source, content)
            source.unread_bytes -= stream.lost_bytes()
        else:
            if rest := stream.rest():
                self._send(source, rest)
            self._send(source, segment)

    def _send(self, source: Endpoint, segment: Segment) -> None:
        source.on_way.append(segment)
        self._send_size(source, len(segment) if isinstance(segment, bytes) else 0)

    def _send_size(self, source: Endpoint, size: int) -> None:
        link = self.link_of(source)
        if link.rules.is_cut:  # a held segment may meet another cut
            link.held.append(partial(self._send_size, source, 0))
            return
        now_s = self.loop.now_s
        arrival_s = max(now_s + link.latency_s(size, now_s), source.last_arrival_s)
        source.last_arrival_s = arrival_s
        self.loop.in_kernel(arrival_s - now_s, self._arrived, source)

    def _arrived(self, source: Endpoint) -> None:
        if not source.on_way:  # one of the two machines lost power
            return
        segment = source.on_way.popleft()  # in the order of sending, not of the timers
        if source.there[0] in self._dark:
            return
        data = segment if isinstance(segment, bytes) else b""
        self.bytes += len(data)
        what = "" if data else str(segment)
        self._carried(self.loop.now_s, f"{source.here} {source.there} {what}", data)
        if source.arrives is not None and data and not source.peer.is_over:
            source.arrives(data)
        source.peer.arrive(segment)

    def forget(self, endpoint: Endpoint) -> None:
        """Drop an endpoint whose connection has ended."""
        self._endpoints.get(endpoint.process, {}).pop(endpoint, None)

    # --- processes and machines ---

    def process_died(self, process: Process) -> None:
        """Close the process's listeners and connections, as its system does."""
        self._close_listeners(process)
        for endpoint in [*self._endpoints.pop(process, {})]:
            endpoint.owner_died()

    def power_lost(self, host: str, process: Process | None) -> None:
        """Stop all traffic of the host; `process`: the process that ran on it."""
        self._dark.add(host)
        if process is None:
            return
        self._close_listeners(process)
        for endpoint in self._endpoints.get(process, {}):
            endpoint.is_over = True
            endpoint.on_way.clear()  # held segments are lost with their machine

    def power_restored(self, host: str, process: Process | None) -> None:
        """Reset the connections on which peers have unread, hence retransmitted, bytes."""
        self._dark.discard(host)
        for endpoint in [*self._endpoints.pop(process, {})]:
            if endpoint.peer.unread_bytes:
                self.send(endpoint, RST)

    def _close_listeners(self, process: Process) -> None:
        for server in [*self._listeners.values()]:
            if server.process is process:
                self._close_listener(server)


def _reset(endpoint: Endpoint) -> None:
    """Reset a connection at both ends."""
    endpoint.arrive(RST)
    endpoint.peer.arrive(RST)


def _reply_late_s(near: Endpoint, exchange: Exchange, message: Message) -> float | None:
    if not exchange.loses_reply(message):
        return 0.0
    _reset(near)
    return None


def _answer(answer: "asyncio.Future[Endpoint]", outcome: Endpoint | Exception) -> None:
    if answer.done():  # the caller has given up
        if isinstance(outcome, Endpoint):
            outcome.abort()
    elif isinstance(outcome, Endpoint):
        answer.set_result(outcome)
    else:
        answer.set_exception(outcome)
