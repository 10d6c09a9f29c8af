"""The families of a node's process: its event loop, its memory and its disk traffic."""

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quorumlog.clock import thread_cpu_s
from quorumlog.node.metrics.exposition import Family

if TYPE_CHECKING:
    from quorumlog.node.node import Node

STARTING, RECOVERY, RUNNING = 1, 2, 3  # Kafka's BrokerState
WINDOW_S: Final = 1.0  # at least: two scrapers would otherwise shorten each other's windows
_IO: Final = Path("/proc/self/io")  # Linux
_MEMORY: Final = Path("/proc/self/statm")


class LoopShare:
    """The share of its time in which the event loop's thread needed no CPU: 0 to 1.

    It is measured between two scrapes that are `WINDOW_S` apart; the first time, since the start.
    """

    def __init__(self, began_s: tuple[float, float]) -> None:
        """`began_s`: the loop's time and its thread's CPU time at the start."""
        self._began_s = began_s
        self._idle: float | None = None

    def idle(self, now_s: float, cpu_s: float) -> float:
        """Return the idle share; the last one, if that was measured just now."""
        elapsed_s, used_s = now_s - self._began_s[0], cpu_s - self._began_s[1]
        if self._idle is None or elapsed_s >= WINDOW_S:
            self._idle = min(max(1 - used_s / max(elapsed_s, 0.001), 0.0), 1.0)
            self._began_s = now_s, cpu_s
        return self._idle


def process_families(node: "Node", share: LoopShare) -> Iterator[Family]:
    """Yield the state of the node, and the resources of its process."""
    now_s, cpu_s = asyncio.get_running_loop().time(), thread_cpu_s()
    idle = [("", round(share.idle(now_s, cpu_s), 4))]
    # One thread reads requests and handles them.
    for name in (
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        "kafka_network_socketserver_networkprocessoravgidle_percent",
    ):
        yield Family(name, "gauge", "Share of its time (0..1) that the event loop idles.", idle)
    name, text = "quorumlog_event_loop_cpu_seconds_total", "CPU seconds of the event loop's thread."
    yield Family(name, "counter", text, [("", cpu_s)])
    used = resource.getrusage(resource.RUSAGE_SELF)
    text = "CPU seconds of all threads."
    cpu = [("", used.ru_utime + used.ru_stime)]
    yield Family("process_cpu_seconds_total", "counter", text, cpu)
    if _MEMORY.exists():
        pages = int(_MEMORY.read_text(encoding="ascii").split()[1])
        size = [("", pages * resource.getpagesize())]
        yield Family("process_resident_memory_bytes", "gauge", "Resident memory.", size)
    if _IO.exists():
        lines = _IO.read_text(encoding="ascii").splitlines()
        moved = dict(line.split(": ") for line in lines)
        for verb in ("read", "write"):
            name = f"kafka_server_kafkaserver_linux_disk_{verb}_bytes"
            value = [("", int(moved[f"{verb}_bytes"]))]
            yield Family(name, "gauge", f"Bytes of disk {verb}s since the start.", value)
    if node.broker is not None:
        is_registered = node.broker.lifecycle.broker_epoch >= 0
        state = RUNNING if node.ready.is_set() else RECOVERY if is_registered else STARTING
        text = "1: starting; 2: registered, and fenced; 3: serves clients."
        yield Family("kafka_server_kafkaserver_brokerstate", "gauge", text, [("", state)])
