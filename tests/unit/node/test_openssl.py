"""Whether a node imports `ssl` before its modules: only if its settings mention TLS."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog.cluster import forked
from quorumlog.cluster.processes import Program
from quorumlog.node.openssl import mentions_tls, settings_texts


@pytest.mark.parametrize(
    "text",
    [
        "listeners=SSL://127.0.0.1:9092",
        "listeners=ssl://127.0.0.1:9092",
        "listener.security.protocol.map=OUT:SASL_SSL",
        "listener.name.out.ssl.keystore.location=x",
        "control.tls.ca.file=x",
        "QUORUMLOG_CONFIG_CONTROL_TLS_CA_FILE=x",
        "sasl.oauthbearer.jwks.endpoint.url=https://h/keys",
        "sasl.oauthbearer.jwks.endpoint.url=\\\n  https://h/keys",
        "# a comment ends with its line\\\nssl.keystore.location=x",
    ],
)
def test_settings_of_tls_are_found(text: str) -> None:
    assert mentions_tls(["node.id=1", text])


@pytest.mark.parametrize(
    "text",
    ["listeners=PLAINTEXT://127.0.0.1:9092", "log.dirs=/tmp/tls/assl/data", "passless=1", "tls"],
)
def test_other_texts_are_not(text: str) -> None:
    assert not mentions_tls([text])


def test_texts_are_those_of_the_file_the_arguments_and_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "node.conf"  # the node takes any name
    path.write_text("node.id=1\n")
    environment = {"QUORUMLOG_CONFIG_NODE_ID": "2", "SSL_CERT_FILE": "x"}
    missing = str(tmp_path / "none.properties")
    texts = settings_texts([str(path), "--config", "node.id=3", missing], environment)
    expected = ["node.id=1\n", "--config", "node.id=3", missing, "QUORUMLOG_CONFIG_NODE_ID=2"]
    assert [*texts] == expected
    assert [*settings_texts(["x" * 10_000, "\0"], {})] == ["x" * 10_000, "\0"]


def test_a_pipe_is_left_to_the_node_and_taken_to_mention_tls(tmp_path: Path) -> None:
    """Such as of `python -m quorumlog.node <(decrypt node.properties)`."""
    pipe = tmp_path / "node.properties"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # else a writer waits for it
    with os.fdopen(reader, encoding="utf-8") as left, pipe.open("w", encoding="utf-8") as writer:
        writer.write("node.id=1\n")
        writer.flush()
        assert mentions_tls(settings_texts([str(pipe)], {}))
        assert left.readline() == "node.id=1\n"


@pytest.mark.parametrize(
    ("setting", "has_tls"),
    [
        ("listeners=PLAINTEXT://h:1", False),
        ("listeners=SSL://h:1", True),
        ("sasl.oauthbearer.jwks.endpoint.url=https://h/keys", True),
    ],
)
def test_modules_of_a_node_have_tls_only_if_the_settings_mention_it(
    tmp_path: Path, setting: str, has_tls: bool
) -> None:
    """uvloop copies names of `ssl` when it is imported: without TLS it copies unusable ones."""
    path = tmp_path / "node.properties"
    path.write_text(f"{setting}\n")
    code = """
import sys
import quorumlog.node.preloaded, asyncio.sslproto, aiohttp.connector
print("ssl" in sys.modules, asyncio.sslproto.ssl is not None, aiohttp.connector.ssl is not None)
try:
    import uvloop
except ImportError:
    sys.exit()
import asyncio, ssl

async def begin_tls():
    context = ssl.create_default_context()
    async with await asyncio.start_server(print, "127.0.0.1", 0, ssl=context):
        print("True")

try:
    uvloop.run(begin_tls())
except TypeError as error:
    assert "SSLContext" in str(error), error
    print("False")
"""
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith("QUORUMLOG_CONFIG_")
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    )
    assert {*done.stdout.split()} == {str(has_tls)}


def test_a_fork_server_of_nodes_with_tls_imports_it_first() -> None:
    assert forked.preloaded_for(Program(), with_tls=True) == ["ssl", "quorumlog.node.preloaded"]
    assert forked.preloaded_for(Program()) == ["quorumlog.node.preloaded"]
