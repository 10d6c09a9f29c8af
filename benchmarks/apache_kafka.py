"""Apache Kafka, to compare with in the same run on the same machine; it is optional.

`python -m benchmarks.apache_kafka ID NODES DIR PORT [NAME=VALUE ...]` runs one node: it formats
DIR/nID if that is new, and becomes the node. Its port is PORT + 2 * ID, with the port of its
controller above.
QUORUMLOG_BENCH_KAFKA names a directory: an unpacked distribution of Apache
Kafka, or only its jars.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PORT: Final = 9290
START_S: Final = 300.0
VARIABLE: Final = "QUORUMLOG_BENCH_KAFKA"
_CLUSTER_ID: Final = "4L6g3nShT-eMCtK--X86sw"
_HEAP: Final = ("-Xms1G", "-Xmx1G")  # as kafka-server-start.sh
_COLLECTOR: Final = (
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)


def why_not() -> str:
    """Return how to get Apache Kafka, or "" if it can run here."""
    named = os.environ.get(VARIABLE)
    if not named or not any(_jars(Path(named)).glob("kafka_*.jar")):
        return (
            f"{VARIABLE} names no directory with its jars: "
            "unpack kafka_2.13-4.3.1.tgz of https://kafka.apache.org/downloads and name it"
        )
    return "" if shutil.which("java") else "there is no Java: it needs 17 or newer"


def _jars(named: Path) -> Path:
    return named / "libs" if (named / "libs").is_dir() else named


def command(node_id: int, nodes: int, directory: Path, port: int, *more: str) -> list[str]:
    """Return the command of one node."""
    words = [node_id, nodes, directory, port, *more]
    return [sys.executable, "-m", "benchmarks.apache_kafka", *map(str, words)]


def port_of(node_id: int, port: int) -> int:
    """Return the port that clients of a node connect to."""
    return port + 2 * node_id


def _properties(node_id: int, nodes: int, directory: Path, port: int, more: Sequence[str]) -> str:
    ports = {node: port_of(node, port) for node in range(1, nodes + 1)}
    voters = ",".join(f"{node}@127.0.0.1:{at + 1}" for node, at in ports.items())
    own = ports[node_id]
    lines = [
        "process.roles=broker,controller",
        f"node.id={node_id}",
        f"listeners=PLAINTEXT://127.0.0.1:{own},CONTROLLER://127.0.0.1:{own + 1}",
        "controller.listener.names=CONTROLLER",
        f"controller.quorum.voters={voters}",
        f"log.dirs={directory / f'n{node_id}'}",
        f"offsets.topic.replication.factor={nodes}",
        f"transaction.state.log.replication.factor={nodes}",
        f"transaction.state.log.min.isr={min(nodes, 2)}",
        f"share.coordinator.state.topic.replication.factor={nodes}",
        "share.coordinator.state.topic.min.isr=1",
        "group.initial.rebalance.delay.ms=0",
        *more,
    ]
    return "".join(f"{line}\n" for line in lines)


class KafkaCluster:
    """Nodes of Apache Kafka, with the methods of LocalCluster that a benchmark calls."""

    def __init__(self, directory: Path, nodes: int, settings: Sequence[str] = ()) -> None:
        self._directory, self._count, self._settings = directory, nodes, settings
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def ids(self) -> range:
        """The ids of the nodes."""
        return range(1, self._count + 1)

    @property
    def bootstrap(self) -> str:
        """`host:port,...` of all nodes."""
        return ",".join(f"127.0.0.1:{port_of(one, PORT)}" for one in self.ids)

    def start(self) -> None:
        """Start the nodes that do not run; return when all ports are open. Raises OSError."""
        self._directory.mkdir(exist_ok=True)
        for node_id in self.ids:
            if self.pid(node_id) is None:
                words = command(node_id, self._count, self._directory, PORT, *self._settings)
                with (self._directory / f"n{node_id}.output").open("ab") as output:
                    self._processes[node_id] = subprocess.Popen(words, stdout=output, stderr=output)
        addresses = [("127.0.0.1", port_of(one, PORT)) for one in self.ids]
        try:
            wait_for(addresses, time.monotonic() + START_S)
        except OSError:
            self.stop()
            raise

    def start_node(self, _node_id: int) -> None:
        """Start the nodes that do not run: there is one."""
        self.start()

    def pid(self, node_id: int) -> int | None:
        """Return the process id of a node, or None if it does not run."""
        process = self._processes.get(node_id)
        return process.pid if process is not None and process.poll() is None else None

    def kill(self, *node_ids: int) -> None:
        """SIGKILL: the processes are gone when this returns."""
        for node_id in node_ids:
            self._processes[node_id].kill()
            self._processes[node_id].wait()

    def pause(self, node_id: int) -> None:
        """SIGSTOP."""
        self._processes[node_id].send_signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """SIGCONT."""
        self._processes[node_id].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGKILL all: nothing of them is needed again."""
        self.kill(*self._processes)


def wait_for(addresses: list[tuple[str, int]], deadline_s: float) -> None:
    """Return when all accept connections. Raises OSError after the deadline."""
    for address in addresses:
        while True:
            try:
                socket.create_connection(address, timeout=1).close()
                break
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.1)


def main() -> None:
    """Format the directory, and become the node."""
    node_id, nodes, directory, port = (
        int(sys.argv[1]),
        int(sys.argv[2]),
        Path(sys.argv[3]),
        int(sys.argv[4]),
    )
    properties = directory / f"n{node_id}.properties"
    properties.write_text(_properties(node_id, nodes, directory, port, sys.argv[5:]))
    java = ["java", "-cp", f"{_jars(Path(os.environ[VARIABLE]))}/*"]
    if not (directory / f"n{node_id}" / "meta.properties").exists():
        tool = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)]
        subprocess.run([*java, *tool], check=True)
    os.execvp("java", [*java, *_HEAP, *_COLLECTOR, "kafka.Kafka", str(properties)])  # noqa: S606 - a peer


if __name__ == "__main__":
    main()
