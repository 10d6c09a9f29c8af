"""Others to compare with, in the same run on the same machine; one that is absent is skipped.

QUORUMLOG_BENCH_BARE    a folder with `repl.sh`: the bare replicated path, without Kafka's protocol
QUORUMLOG_BENCH_KAFKA   a script that runs Apache Kafka: `SCRIPT node ID NODES DIR PORT` in the
                        foreground, Kafka's port being PORT + 2 * ID
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.measure import Table

KAFKA_PORT: Final = 9290
KAFKA_START_S: Final = 90.0


def bare_mb_per_s(table: Table) -> float | None:
    """Return the rate of the bare replicated path, 16 KiB batches, 2 followers."""
    folder = os.environ.get("QUORUMLOG_BENCH_BARE")
    if folder is None or not (Path(folder) / "repl.sh").exists():
        table.note("the bare replicated path (QUORUMLOG_BENCH_BARE) is not here: skipped")
        return None
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(folder, Path(scratch) / "bare"))
        (copy / "data").mkdir(exist_ok=True)
        arguments = ["uvbuf", "2", "kafka", "tput", "16384", "4", "32", "3"]
        shown = subprocess.run(
            ["bash", str(copy / "repl.sh"), *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHON": sys.executable},
        )
    rates = [float(rate) for rate in re.findall(r'"MBs": ([0-9.]+)', shown.stdout)]
    if not rates:
        table.note(f"the bare replicated path said nothing: {shown.stdout[-200:]}")
        return None
    return rates[0]


@contextmanager
def apache_kafka(table: Table) -> Iterator[str | None]:
    """Run three nodes of Apache Kafka; yield their addresses, or None if it is not here."""
    script = os.environ.get("QUORUMLOG_BENCH_KAFKA")
    if script is None or not Path(script).exists() or shutil.which("java") is None:
        table.note("Apache Kafka (QUORUMLOG_BENCH_KAFKA, and Java) is not here: skipped")
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="kafka-peer-") as directory:
        command = ["bash", script, "node"]
        nodes = [
            subprocess.Popen(
                [*command, str(index), "3", directory, str(KAFKA_PORT)], start_new_session=True
            )
            for index in (1, 2, 3)
        ]
        try:
            addresses = [("127.0.0.1", KAFKA_PORT + 2 * index) for index in (1, 2, 3)]
            _wait_for(addresses, time.monotonic() + KAFKA_START_S)
            yield ",".join(f"{host}:{port}" for host, port in addresses)
        finally:
            for node in nodes:
                os.killpg(node.pid, signal.SIGKILL)
                node.wait()


def _wait_for(addresses: list[tuple[str, int]], deadline_s: float) -> None:
    for address in addresses:
        while True:
            try:
                socket.create_connection(address, timeout=1).close()
                break
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.1)
