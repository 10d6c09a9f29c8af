"""A standalone Spark cluster of one master and one worker, on this machine or beside it."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from quorumlog.chaos.checking.spark.java import find_java, make_java_home
from quorumlog.cluster.ports import free_ports

START_TIMEOUT_S = 120
# Of JVMs that end before they are warm.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=128m"
SPARK_HOME = Path(pyspark.__file__).parent


def environment(log: Path) -> dict[str, str]:
    """Return the environment in which a program of Spark's finds a Java; its stderr is in `log`."""
    home = make_java_home(
        log.with_suffix(".home"), find_java(), log=log, pid_file=log.with_suffix(".pid")
    )
    without = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return {
        **without,
        "JAVA_HOME": str(home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        "SPARK_LAUNCHER_OPTS": SHORT_LIVED,
    }


@contextmanager
def daemon(
    name: str, arguments: Sequence[str], directory: Path, prefix: Sequence[str] = ()
) -> Iterator[Path]:
    """Run one of Spark's daemons; yield the file with its output."""
    log = directory / f"{name}.log"
    program: list[str | Path] = [
        SPARK_HOME / "bin" / "spark-class",
        f"org.apache.spark.deploy.{name}",
        *arguments,
    ]
    process = subprocess.Popen(
        [*prefix, *program], env=environment(log), stdout=subprocess.DEVNULL, cwd=directory
    )
    try:
        log.touch()
        yield log
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def master(directory: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Run a master, and yield its URL. It has no worker."""
    (port,) = free_ports(host, 1)
    arguments = ["--host", host, "--port", str(port), "--webui-port", "0"]
    with daemon("master.Master", arguments, directory) as log:
        wait_for("I have been elected leader", log)
        yield f"spark://{host}:{port}"


@contextmanager
def worker(url: str, directory: Path, host: str, prefix: Sequence[str] = ()) -> Iterator[None]:
    """Run a worker of two cores at `host`, which is reached by the commands of `prefix`."""
    arguments = ["--host", host, "--cores", "2", "--memory", "1g", "--webui-port", "0"]
    arguments += ["--work-dir", str(directory / "work"), url]
    with daemon("worker.Worker", arguments, directory, prefix) as log:
        wait_for("Successfully registered with master", log)
        yield


def wait_for(text: str, log: Path) -> None:
    """Wait until `log` has `text`."""
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        if text in log.read_text(encoding="utf-8", errors="replace"):
            return
        time.sleep(0.01)
    raise TimeoutError(f"no {text!r} in {log}: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def other_network() -> Iterator[tuple[list[str], str, str]]:
    """Make a network namespace; yield the prefix of commands in it, our address, and its own."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a network namespace needs root and the program ip")
    number = os.getpid() % 200 + 20
    name, ours, theirs = f"quorumlog{number}", f"10.213.{number}.1", f"10.213.{number}.2"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"this machine gives no network namespace: {made.stderr.decode().strip()}")
    inside = ["ip", "netns", "exec", name]
    link = f"qlv{number}"
    try:
        for command in (
            ["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name],
            ["ip", "address", "add", f"{ours}/24", "dev", link],
            ["ip", "link", "set", link, "up"],
            [*inside, "ip", "address", "add", f"{theirs}/24", "dev", "eth0"],
            [*inside, "ip", "link", "set", "eth0", "up"],
            [*inside, "ip", "link", "set", "lo", "up"],
        ):
            subprocess.run(command, capture_output=True, check=True)
        yield inside, ours, theirs
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def submit(master_url: str, arguments: Sequence[str], directory: Path) -> str:
    """Run a script by spark-submit; return its output."""
    done = subprocess.run(
        [
            *(SPARK_HOME / "bin" / "spark-submit", "--master", master_url),
            *("--driver-java-options", SHORT_LIVED, *arguments),
        ],
        env={**environment(directory / "submit.log"), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    said = done.stdout + done.stderr + (directory / "submit.log").read_text()[-2000:]
    assert done.returncode == 0, said
    return done.stdout
