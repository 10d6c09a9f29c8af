"""Nodes that start together, and again, are forked from one process, as if each started alone.

docs/decisions/0045-fork-server.md
"""

import gc
import os
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from quorumlog.cluster import LocalCluster, NodeFailed, forked, registry
from quorumlog.cluster.processes import Launch
from quorumlog.cluster.time_limit import TimeLimit
from quorumlog.node.fork_server import NodePlan, Plan
from tests.unit.cluster.conftest import FAKE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes are forked on Linux only")


@pytest.fixture
def cluster(make: Callable[..., LocalCluster]) -> LocalCluster:
    """Plan a cluster of three nodes."""
    return make(nodes=3)


def pids(cluster: LocalCluster) -> list[int]:
    return [pid for node in cluster.nodes if (pid := cluster.pid(node.id)) is not None]


def parent_of(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


def has_ended(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor, "rb"):
        return bool(select.select([descriptor], [], [], 0)[0])


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def files_of(pid: int) -> dict[int, str]:
    found = {}
    for opened in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed just now
            found[int(opened.name)] = str(opened.readlink())
    return found


def test_each_node_has_a_session_words_and_an_output_of_its_own(cluster: LocalCluster) -> None:
    cluster.start()
    assert server_of(cluster) != os.getpid()
    for node_id, pid in zip((1, 2, 3), pids(cluster), strict=True):
        directory = cluster.directory / f"node-{node_id}"
        assert os.getsid(pid) == pid
        assert words_of(pid)[:4] == [sys.executable, "-m", FAKE, f"{directory}/node.properties"]
        files = files_of(pid)
        log = f"{directory}/node.log"
        assert [files[number] for number in (0, 1, 2)] == ["/dev/null", log, log]
        pipes = {number for number, file in files.items() if file.startswith("pipe:")}
        words = words_of(pid)
        assert pipes <= {
            int(words[words.index(name) + 1]) for name in ("--ready-fd", "--parent-fd")
        }


def test_a_killed_node_takes_no_other_with_it_and_its_end_is_known(cluster: LocalCluster) -> None:
    cluster.start()
    cluster.kill(2)
    assert cluster.running() == [1, 3]
    assert [cluster.exit_status(node) for node in (1, 2, 3)] == [None, -signal.SIGKILL, None]
    cluster.start_node(2)
    assert cluster.running() == [1, 2, 3]
    cluster.stop_node(1)
    assert cluster.exit_status(1) == 0


def server_of(cluster: LocalCluster) -> int:
    """The process that has forked the nodes."""
    (server,) = {parent_of(pid) for pid in pids(cluster)}
    return server


def test_a_node_that_starts_again_is_forked_from_the_same_process(cluster: LocalCluster) -> None:
    cluster.start()
    server = server_of(cluster)
    before = pids(cluster)
    for node_id in (2, 3):
        cluster.kill(node_id)
    for node_id in (3, 2):
        cluster.start_node(node_id)
        assert parent_of(cluster.pid(node_id) or 0) == server
    for node_id, pid in zip((2, 3), pids(cluster)[1:], strict=True):
        log = f"{cluster.directory}/node-{node_id}/node.log"
        assert os.getsid(pid) == pid
        assert words_of(pid)[3] == f"{cluster.directory}/node-{node_id}/node.properties"
        files = files_of(pid)
        assert [files[number] for number in (0, 1, 2)] == ["/dev/null", log, log]
        pipes = {number for number, file in files.items() if file.startswith("pipe:")}
        words = words_of(pid)
        assert pipes <= {
            int(words[words.index(name) + 1]) for name in ("--ready-fd", "--parent-fd")
        }
    assert pids(cluster)[0] == before[0]
    cluster.kill(2)
    assert [cluster.exit_status(node) for node in (1, 2, 3)] == [None, -signal.SIGKILL, None]
    cluster.stop()
    assert not Path(f"/proc/{server}").exists()


def test_nodes_that_start_again_at_once_are_forked_one_after_the_other(
    cluster: LocalCluster,
) -> None:
    cluster.start()
    server = server_of(cluster)
    cluster.kill(1, 2)
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(cluster.start_node, (1, 2)):
            pass
    assert cluster.running() == [1, 2, 3]
    assert {parent_of(pid) for pid in pids(cluster)} == {server}


def test_a_node_that_starts_again_in_another_environment_is_started_alone(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start()
    cluster.kill(2)
    monkeypatch.setenv("FAKE_NODES", "2:fails")
    with pytest.raises(NodeFailed, match="it fails as it was told"):
        cluster.start_node(2)
    monkeypatch.delenv("FAKE_NODES")
    cluster.start_node(2)
    assert cluster.running() == [1, 2, 3]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_node_starts_alone_if_the_process_that_forked_it_has_ended(
    cluster: LocalCluster, is_known: bool
) -> None:
    cluster.start()
    server = server_of(cluster)
    cluster.kill(2)
    os.kill(server, signal.SIGKILL)
    descriptor = os.pidfd_open(server)
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)
    if is_known:
        assert cluster.running() == [1, 3]
    cluster.start_node(2)
    assert cluster.running() == [1, 2, 3]
    assert parent_of(cluster.pid(2) or 0) == os.getpid()


def test_no_process_is_left_once_the_nodes_have_stopped(cluster: LocalCluster) -> None:
    cluster.start()
    server = server_of(cluster)
    cluster.stop()
    assert not Path(f"/proc/{server}").exists()


def test_nodes_outlive_the_process_that_has_forked_them(cluster: LocalCluster) -> None:
    cluster.start()
    server = server_of(cluster)
    os.kill(server, signal.SIGKILL)
    descriptor = os.pidfd_open(server)
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)
    assert cluster.running() == [1, 2, 3]
    cluster.kill(3)
    assert cluster.running() == [1, 2]
    assert cluster.exit_status(3) == -signal.SIGKILL
    assert cluster.stop() == ()
    assert registry.running() == []


def test_a_module_that_cannot_be_imported_is_told_for_the_first_node(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked, "preloaded_for", lambda _, **__: ["no_such_module"])
    with pytest.raises(NodeFailed, match=r"node 1 ended with status 1: .*No module named 'no_such"):
        cluster.start()
    assert registry.running() == []


def test_a_node_with_a_launch_of_its_own_is_started_alone(cluster: LocalCluster) -> None:
    cluster.launch_by(2, Launch(environment={"FAKE": "2"}))
    cluster.start()
    assert cluster.running() == [1, 2, 3]
    parents = {node.id: parent_of(cluster.pid(node.id) or 0) for node in cluster.nodes}
    assert parents[2] == os.getpid()
    assert parents[1] == parents[3] != os.getpid()


def started(tmp_path: Path, code: str, count: int = 2) -> forked.ForkServer:
    """Fork processes that run a module of this text; each has a log of its own."""
    (tmp_path / "forked_module.py").write_text(code)
    node = NodePlan(command=[], module="forked_module", arguments=[], log="", descriptors=[])
    logs = [str(tmp_path / f"{number}.log") for number in range(count)]
    interpreter = ["env", f"PYTHONPATH={tmp_path}:{Path.cwd()}", sys.executable, "-m"]
    server = forked.ForkServer(interpreter, [])
    server.fork(Plan(nodes=[{**node, "log": log} for log in logs], descriptors=[]))
    return server


def limit() -> TimeLimit:
    return TimeLimit(30, {}, lambda _: None)


PAUSES = "import signal; signal.pause()"


def test_a_start_that_is_interrupted_forks_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = started(tmp_path, PAUSES)

    def interrupted() -> bool:
        raise KeyboardInterrupt

    interrupts = limit()
    monkeypatch.setattr(interrupts, "is_over", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.wait_forked(interrupts)
    assert server.children == []
    assert server.process.returncode == 0


def test_how_a_process_ends_is_what_its_module_says(tmp_path: Path) -> None:
    code = """
import os, sys
print("out", flush=True)
sys.exit("it fails" if os.readlink("/proc/self/fd/1").endswith("0.log") else 0)
"""
    server = started(tmp_path, code)
    server.wait_forked(limit())
    assert [child.wait() for child in server.children] == [1, 0]
    assert [child.poll() for child in server.children] == [1, 0]
    assert (tmp_path / "0.log").read_text() == "out\nit fails\n"
    assert (tmp_path / "1.log").read_text() == "out\n"
    assert server.process.returncode == 0


def test_a_prepared_one_forks_the_next_nodes_or_ends_with_its_process(tmp_path: Path) -> None:
    code = """
import sys
from quorumlog.cluster import LocalCluster, forked
from tests.unit.cluster.test_forked import parent_of, pids
forked.prepare()
print(forked._prepared[0].process.pid)
if len(sys.argv) > 1:
    with LocalCluster(sys.argv[1], nodes=2, port=0) as cluster:
        cluster.start()
        print(*map(parent_of, pids(cluster)))
"""

    def printed(*arguments: str) -> list[int]:
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        return [int(word) for word in done.stdout.split()]

    server, first, second = printed(str(tmp_path / "c"))
    assert server == first == second
    (unused,) = printed()
    assert not Path(f"/proc/{unused}").exists()


def test_a_prepared_one_that_a_start_does_not_need_is_dropped(
    make: Callable[..., LocalCluster],
) -> None:
    forked.prepare()
    process = forked._prepared[0].process
    with make(nodes=1):
        assert process.returncode == -signal.SIGKILL
        assert forked._prepared == []


def test_one_that_is_kept_forks_single_nodes_and_those_of_later_clusters(tmp_path: Path) -> None:
    code = """
import sys
from quorumlog.cluster import LocalCluster, forked
from tests.unit.cluster.test_forked import parent_of, pids
forked.keep()
left = LocalCluster(nodes=1)
left.start()
print(*map(parent_of, pids(left)), *pids(left))
for nodes in (1, 2):
    with LocalCluster(f"{sys.argv[1]}/{nodes}", nodes=nodes, port=0) as cluster:
        cluster.start()
        cluster.kill(*cluster.running())
        cluster.start()
        print(*map(parent_of, pids(cluster)))
"""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    server, left, *others = [int(word) for word in done.stdout.split()]
    assert others == [server] * 3
    assert has_ended(server)
    assert has_ended(left)
    assert done.stderr == b""


@pytest.mark.parametrize(
    "event",
    [
        "os.kill(server, 9); os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)",
        "if child := os.fork(): os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    ],
    ids=["it was killed", "its owner forked this process"],
)
def test_another_one_takes_the_place_of_a_kept_one_that_cannot_be_used(
    tmp_path: Path, event: str
) -> None:
    code = f"""
import os, sys
from quorumlog.cluster import LocalCluster, forked
from tests.unit.cluster.test_forked import server_of
forked.keep()
servers = []
for nodes in (1, 2):
    with LocalCluster(f"{{sys.argv[1]}}/{{nodes}}", nodes=nodes, port=0) as cluster:
        cluster.start()
        server = server_of(cluster)
        servers.append(server)
    if nodes == 1:
        {event}
assert len({{os.getpid(), *servers}}) == 3
"""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_that_nobody_holds_ends_without_a_warning_and_its_node_goes_on(tmp_path: Path) -> None:
    server = started(tmp_path, PAUSES, count=1)
    server.wait_forked(limit())
    pid, node = server.process.pid, server.children[0].pid
    server.children.clear()  # they refer to it
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del server
        gc.collect()
    assert [str(one.message) for one in warned if one.category is ResourceWarning] == []
    assert not Path(f"/proc/{pid}").exists()
    assert not has_ended(node)
    os.kill(node, signal.SIGKILL)


def test_a_wait_for_a_process_has_an_end(tmp_path: Path) -> None:
    server = started(tmp_path, PAUSES, count=1)
    server.wait_forked(limit())
    (child,) = server.children
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.001)
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM
