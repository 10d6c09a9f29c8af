"""What a start loads: each module costs every node, and the command that starts them, some CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog.broker.guards.registry import REFUSED_ANYWAY
from quorumlog.broker.handlers.registry import HANDLERS, RARE
from quorumlog.wire.codec.messages import APIS

NEEDLESS_IN_A_NODE = {
    *(
        "typer",
        "rich",
        "pydantic",
        "numpy",
        "pyarrow",
        "pyspark",
        "pytest",
    ),  # of commands and the lab
    *("lz4", "zstandard", "snappy", "cramjam"),  # compression: with the first batch that has it
    *("ctypes", "multiprocessing", "unittest", "statistics", "difflib"),
    "re2",  # with the first regular expression
    *("cryptography", "joserfc", "quorumlog.node.token_issuer"),  # with signed tokens
    *("quorumlog.broker.authentication.authenticator", "quorumlog.broker.server.sasl_connection"),
    *("importlib.metadata", "zipfile", "csv"),  # with the name of a missing extra
    "ssl",  # with TLS; see also test_openssl
    *("quorumlog.node.tls", "quorumlog.wire.io.tls_listener", "quorumlog.broker.guards"),
    *("quorumlog.broker.authentication.certificate_principals", "quorumlog.broker.authorization"),
    *("quorumlog.wire.codec.sasl", "quorumlog.wire.io.sasl", "quorumlog.broker.telemetry"),
    *("quorumlog.node.metrics.broker_families",),  # with the first GET /metrics
    *("quorumlog.cli", "quorumlog.cluster", "quorumlog.chaos", "quorumlog.client"),
}
NEEDLESS_TO_START_NODES = {
    *("asyncio", "aiohttp", "http.client", "cbor2", "crc32c", "numpy", "pyarrow", "pyspark"),
    *("quorumlog.client", "quorumlog.chaos", "quorumlog.storage.io", "quorumlog.node.node"),
    *("quorumlog.metadata_quorum.controller_client", "quorumlog.metadata_quorum.image"),
    *("quorumlog.metadata_quorum.log", "quorumlog.broker.controller_requests"),
}


def loaded_by(program: str) -> set[str]:
    """Run a program in another process; return the names of all modules, and of their packages."""
    command = [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"]
    return {*subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()}


def test_a_node_loads_nothing_that_only_commands_and_clients_need() -> None:
    loaded = loaded_by("import quorumlog.node.preloaded")
    assert "quorumlog.broker.replicas" in loaded
    assert not loaded & NEEDLESS_IN_A_NODE


def test_a_library_that_cannot_use_a_stand_in_has_the_real_module(tmp_path: Path) -> None:
    """Another release of crc32c may compute with its version, instead of copying it."""
    (tmp_path / "crc32c.py").write_text(
        "from importlib.metadata import version\n"
        'major = int(version("crc32c")[0])\n'
        "def crc32c(data, value=0): return major\n"
    )
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import quorumlog.node.preloaded"
    loaded = loaded_by(f"{program}; assert sys.modules['crc32c'].major >= 2")
    assert "quorumlog.node.main" in loaded


def test_a_node_loads_at_its_start_the_messages_that_it_serves_and_no_others() -> None:
    """An import in the first request of an API needs a file handle, and the event loop waits."""
    late = {key for keys in RARE.values() for key in keys}
    assert REFUSED_ANYWAY <= late < HANDLERS.keys()
    loaded = loaded_by("import quorumlog.node.preloaded")
    messages = {key: f"quorumlog.wire.codec.messages.{api.module}" for key, api in APIS.items()}
    assert {key for key in APIS if messages[key] in loaded} == HANDLERS.keys() - late
    assert not loaded & {f"quorumlog.broker.handlers.{module}" for module in RARE}


def test_a_node_loads_at_its_start_what_a_request_needs_when_no_file_can_be_opened() -> None:
    assert {"encodings.utf_16_be", "encodings.idna"} <= loaded_by("import quorumlog.node.preloaded")


@pytest.mark.parametrize(
    "start",
    [
        "import quorumlog.node.preloaded",
        "from quorumlog.cli.main import build_app; build_app(['topics'])",
    ],
)
def test_the_second_start_compiles_no_dataclass(tmp_path: Path, start: str) -> None:
    """That is a third of the imports of a node or command: see `quorumlog.node.kept_code`."""
    program = f"""
import sys
sys.pycache_prefix, sys.dont_write_bytecode = {str(tmp_path)!r}, False
import quorumlog.node.kept_code as kept_code
compiled = []
def spy(text, *arguments, **options):
    compiled.append(text)
    return compile(text, *arguments, **options)
kept_code.compile = spy
{start}
print(len(compiled))
"""
    command = [sys.executable, "-c", program]
    first, second = (
        int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(2)
    )
    assert first > 0
    assert second == 0


def test_to_plan_check_and_found_a_cluster_loads_no_part_of_a_node() -> None:
    program = """
import tempfile, pathlib
from quorumlog import LocalCluster
from quorumlog.cluster import layout
with tempfile.TemporaryDirectory() as scratch:
    cluster = LocalCluster(pathlib.Path(scratch) / "cluster")
    cluster.check()
    layout.found(cluster.directory, cluster.spec)
"""
    loaded = loaded_by(program.strip())
    assert "quorumlog.node.config" in loaded  # the settings are checked by the rules of a node
    assert not loaded & NEEDLESS_TO_START_NODES


def test_a_command_of_the_lab_loads_no_node_no_mirror_and_no_library_of_the_checks() -> None:
    """Nodes and mirrors are processes of their own; only the simulator runs a node in its own."""
    loaded = loaded_by("import quorumlog.cli.chaos_commands")
    assert "quorumlog.chaos.run.run" in loaded
    needless = {"quorumlog.broker", "quorumlog.node.node", "quorumlog.chaos.node_simulation"}
    assert not loaded & (needless | {"quorumlog.mirror", "aiohttp", "numpy", "pyarrow", "pyspark"})


def test_what_nodes_share_when_they_are_forked_is_no_thread_and_no_file() -> None:
    """A fork has only the thread that forked, and the files would be one for all nodes."""
    program = """
import os, threading
before = len(os.listdir("/dev/fd"))
import quorumlog.node.preloaded
assert threading.active_count() == 1, threading.enumerate()
assert len(os.listdir("/dev/fd")) == before
if os.path.exists("/proc/self/task"):
    assert len(os.listdir("/proc/self/task")) == 1
"""
    assert "quorumlog.node.main" in loaded_by(program.strip())
