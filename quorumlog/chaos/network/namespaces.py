"""Nodes in network namespaces of their own; the kernel applies the rules on their links.

Each node has a namespace with one interface on a bridge; the clients are at the bridge itself. A
rule applies where packets leave the sender: a cut maps the receiver's address to a hardware address
that no interface has, and a rate is a class of `tc`. It needs Linux, root, and three commands.
"""

import json
import os
import platform
import random
import re
import secrets
import shutil
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, Self

from quorumlog.addresses import host_and_port
from quorumlog.chaos.faults.links import CLIENTS, Cut, Effect, Link, LinkRule, Rate, Reset
from quorumlog.chaos.network.links import LinksFailed
from quorumlog.cluster import process_identity
from quorumlog.cluster.layout import NodeSpec

EFFECTS: Final[frozenset[type[Effect]]] = frozenset({Cut, Rate, Reset})
"""The effects that the kernel can apply without parsing requests."""
_COMMANDS: Final = ("ip", "tc", "ss")
_COMMAND_TIMEOUT_S: Final = 20.0
_NOBODY: Final = "02:00:00:00:00:00"  # a hardware address that no interface has
_INSIDE: Final = "eth0"  # the interface in each namespace
_SUBNETS: Final = 256  # of 198.18.0.0/16: RFC 2544 reserves it for network tests
_NODES_MAX: Final = 200
_CLIENTS_HOST: Final = 254
_NAME: Final = re.compile(r"quorumlog-([0-9a-f]{6})-(\d+)-(\d+)-(\d+)")


class NamespacesFailed(LinksFailed):
    """The kernel refused a command. One line to act on."""


@cache
def why_not() -> str:
    """Return why this machine cannot run such nodes, or ""; it tries to make one."""
    if platform.system() != "Linux":
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root"
    for command in _COMMANDS:
        if shutil.which(command) is None:
            return f"it needs the command {command}"
    try:
        with Namespaces([NodeSpec(id=1, roles=(), kafka=":1", control=":1")]) as tried:
            link = (Link(CLIENTS, "1"),)
            tried.impose(LinkRule("cut", link, Cut()))
            tried.impose(LinkRule("rate", link, Rate(1_000)))
            tried.impose(LinkRule("reset", link, Reset()))
        if not _is_connection_reset():
            return "its kernel does not end connections (CONFIG_INET_DIAG_DESTROY)"
    except NamespacesFailed as error:
        return f"the kernel refuses it: {error}"
    return ""


def _is_connection_reset() -> bool:
    """Try to end a connection of our own: without the option, `ss -K` succeeds and ends none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as dialled:
            to = ("dst", "127.0.0.1", "and", f"( dport = :{port} )")
            _do("ss", "-K", "-t", "state", "connected", *to)
            dialled.setblocking(False)
            try:
                dialled.recv(1)
            except BlockingIOError:
                return False
            except OSError:
                return True
            return True


class Namespaces:
    """The namespaces of some nodes, and the rules on their links. A context manager.

    Its methods block for a moment; all raise NamespacesFailed. Entering it removes the namespaces
    of killed runs.
    """

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        self._nodes: Final = tuple(nodes)
        self._token: Final = secrets.token_hex(3)
        self._lock: Final = threading.Lock()
        self._subnet = ""
        self._rules: Final[dict[str, LinkRule]] = {}
        self._resets: Final[dict[str, threading.Event]] = {}
        self._cut: Final[set[tuple[str, str]]] = set()
        self._slowed: Final[dict[tuple[str, str], int]] = {}
        self._shaped: Final[set[str]] = set()  # parties whose interface has classes

    def __enter__(self) -> Self:
        sweep()
        if len(self._nodes) > _NODES_MAX:
            raise NamespacesFailed(f"there is room for {_NODES_MAX} nodes")
        self._subnet = _free_subnet()
        bridge = self._bridge
        try:
            _do("ip", "link", "add", bridge, "type", "bridge")
            _do("ip", "addr", "add", f"{self._address(CLIENTS)}/24", "dev", bridge)
            _do("ip", "link", "set", bridge, "up")
            for node in self._nodes:
                self._add(node.id)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the namespaces, and with them every connection."""
        with self._lock:
            for resets in self._resets.values():
                resets.set()
            for node in self._nodes:
                _try("ip", "netns", "del", self._namespace(node.id))
            _try("ip", "link", "del", self._bridge)

    def _add(self, node_id: int) -> None:
        name, outside = self._namespace(node_id), f"{self._bridge}n{node_id}"
        _do("ip", "netns", "add", name)
        peer = ("peer", "name", _INSIDE, "netns", name)
        _do("ip", "link", "add", outside, "type", "veth", *peer)
        _do("ip", "link", "set", outside, "master", self._bridge, "up")
        address = f"{self._address(str(node_id))}/24"
        _do("ip", "-n", name, "addr", "add", address, "dev", _INSIDE)
        for interface in ("lo", _INSIDE):
            _do("ip", "-n", name, "link", "set", interface, "up")

    @property
    def _bridge(self) -> str:
        return f"ql{self._token}"

    def _namespace(self, node_id: int) -> str:
        return f"quorumlog-{self._token}-{os.getpid()}-{_start_of(os.getpid())}-{node_id}"

    def _address(self, party: str) -> str:
        host = _CLIENTS_HOST if party == CLIENTS else self._place(party)
        return f"{self._subnet}.{host}"

    def _place(self, party: str) -> int:
        """Return the number of a party, from 1: node ids may be any numbers."""
        return [str(node.id) for node in self._nodes].index(party) + 1

    def prefix(self, node_id: int) -> tuple[str, ...]:
        """Return the command that becomes the node's process in its namespace."""
        return ("ip", "netns", "exec", self._namespace(node_id))

    def detours(self) -> Mapping[int, Mapping[str, str]]:
        """Return the properties of each node that configure the nodes' addresses."""
        kafka = {node.id: self._moved(node, node.kafka) for node in self._nodes}
        control = {node.id: self._moved(node, node.control) for node in self._nodes}
        voters = ",".join(
            f"{node.id}@{control[node.id]}" for node in self._nodes if "controller" in node.roles
        )
        return {
            node.id: {
                "listeners": f"PLAINTEXT://{kafka[node.id]}",
                "advertised.listeners": f"PLAINTEXT://{kafka[node.id]}",
                "control.listener": control[node.id],
                "controller.quorum.voters": voters,
            }
            for node in self._nodes
        }

    def _moved(self, node: NodeSpec, address: str) -> str:
        return f"{self._address(str(node.id))}:{host_and_port(address)[1]}"

    # --- rules ---

    def impose(self, rule: LinkRule) -> None:
        """Impose a rule."""
        with self._lock:
            self._rules[rule.id] = rule
            self._update()
            if isinstance(rule.effect, Reset):
                over = self._resets[rule.id] = threading.Event()
                self._reset(rule)
                if rule.effect.every_us:
                    arguments = (rule, rule.effect.every_us / 1_000_000, over)
                    threading.Thread(target=self._keep_resetting, args=arguments).start()

    def lift(self, rule_id: str) -> None:
        """Lift a rule."""
        with self._lock:
            self._rules.pop(rule_id, None)
            if over := self._resets.pop(rule_id, None):
                over.set()
            self._update()

    def _update(self) -> None:
        """Apply the current rules in the kernel."""
        cut: set[tuple[str, str]] = set()
        slowed: dict[tuple[str, str], int] = {}
        for rule in self._rules.values():
            for link in rule.links:
                ends = (link.source, link.destination)
                if isinstance(rule.effect, Cut):
                    cut.add(ends)
                elif isinstance(rule.effect, Rate):
                    slowed[ends] = min(rule.effect.bytes_per_s, slowed.get(ends, 1 << 62))
        for source, destination in sorted(cut ^ self._cut):
            self._set_cut(source, destination, is_cut=(source, destination) in cut)
        for ends in sorted({*slowed, *self._slowed}):
            if slowed.get(ends) != self._slowed.get(ends):
                self._set_rate(*ends, slowed.get(ends))
        self._cut.clear()
        self._cut.update(cut)
        self._slowed.clear()
        self._slowed.update(slowed)

    def _set_cut(self, source: str, destination: str, *, is_cut: bool) -> None:
        at, address = self._at(source), self._address(destination)
        neighbour = (address, "dev", self._interface(source))
        if is_cut:
            gone = ("lladdr", _NOBODY, "nud", "permanent")
            _do("ip", *at, "neigh", "replace", *neighbour, *gone)
        else:
            _do("ip", *at, "neigh", "del", *neighbour)

    def _set_rate(self, source: str, destination: str, bytes_per_s: int | None) -> None:
        at, interface = self._at(source), ("dev", self._interface(source))
        number = 1 + (_CLIENTS_HOST if destination == CLIENTS else self._place(destination))
        link_class = ("parent", "1:", "classid", f"1:{number:x}")
        packets = ("parent", "1:", "protocol", "ip", "prio", str(number), "u32")
        if source not in self._shaped:  # traffic without a class is not slowed
            self._shaped.add(source)
            _do(
                "tc", *at, "qdisc", "add", *interface, "root", "handle", "1:", "htb", "default", "0"
            )
        if destination_rate := bytes_per_s:
            rate = ("htb", "rate", f"{destination_rate}bps")  # to tc, these are bytes
            _do("tc", *at, "class", "replace", *interface, *link_class, *rate)
            if (source, destination) not in self._slowed:
                to = ("match", "ip", "dst", f"{self._address(destination)}/32")
                _do("tc", *at, "filter", "add", *interface, *packets, *to, "flowid", link_class[-1])
        else:
            _do("tc", *at, "filter", "del", *interface, *packets)
            _do("tc", *at, "class", "del", *interface, *link_class)

    def _keep_resetting(self, rule: LinkRule, every_s: float, over: threading.Event) -> None:
        while not over.wait(every_s):
            with self._lock, suppress(NamespacesFailed):  # the run is ending
                if not over.is_set():
                    self._reset(rule)

    def _reset(self, rule: LinkRule) -> None:
        """Reset the connections that the source of each link has dialled."""
        nodes = {str(node.id): node for node in self._nodes}
        for link in rule.links:
            if (node := nodes.get(link.destination)) is None:
                continue  # no party dials the clients
            kafka, control = (host_and_port(at)[1] for at in (node.kafka, node.control))
            ports = f"( dport = :{kafka} or dport = :{control} )"
            to = ("dst", self._address(link.destination), "and", ports)
            _do("ss", *self._socket_at(link.source), "-K", "-t", "state", "connected", *to)

    def _at(self, party: str) -> tuple[str, ...]:
        return () if party == CLIENTS else ("-n", self._namespace(int(party)))

    def _socket_at(self, party: str) -> tuple[str, ...]:
        return () if party == CLIENTS else ("-N", self._namespace(int(party)))

    def _interface(self, party: str) -> str:
        return self._bridge if party == CLIENTS else _INSIDE


def sweep() -> None:
    """Remove the namespaces and bridges of runs that have ended without removing them."""
    for line in _do("ip", "netns", "list").splitlines():
        found = _NAME.match(line)
        if found is not None and _start_of(int(found[2])) != found[3]:
            _try("ip", "netns", "del", found[0])
            _try("ip", "link", "del", f"ql{found[1]}")


def _start_of(pid: int) -> str:
    """Return when a process started, in digits; "" if there is none."""
    return (process_identity.started(pid) or "").rpartition(":")[2]


def _free_subnet() -> str:
    """Return the first three numbers of a subnet that no interface uses."""
    interfaces: list[dict[str, Any]] = json.loads(_do("ip", "-j", "-4", "addr"))
    taken = {
        str(address["local"]).rpartition(".")[0]
        for interface in interfaces
        for address in interface["addr_info"]
    }
    for number in random.SystemRandom().sample(range(_SUBNETS), _SUBNETS):
        if (subnet := f"198.18.{number}") not in taken:
            return subnet
    raise NamespacesFailed("all addresses for namespaces are taken: 198.18.0.0/16")


def _do(*command: str) -> str:
    """Run a command; return its output."""
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NamespacesFailed(f"{command[0]}: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no error output"]
        raise NamespacesFailed(f"{' '.join(command)}: {said[-1]}")
    return done.stdout


def _try(*command: str) -> None:
    with suppress(NamespacesFailed):  # it is gone already
        _do(*command)
