"""`quorumlog doctor`: its statuses, its lines and its document."""

import socket
from pathlib import Path

import pytest

from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE
from tests.support.cli.in_process import CommandLine


@pytest.fixture
def closed() -> str:
    """Return an address of this machine at which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_finding_has_a_reason_and_a_remedy_and_ends_with_status_1(
    command: CommandLine, closed: str
) -> None:
    command("doctor", closed, status=EXIT_FAILED)
    assert command.out.splitlines() == [
        f"refused: the bootstrap address {closed}: no process listens there",
        "  -> start the broker, or correct the port",
        "1 finding",
    ]


def test_the_document_has_each_finding_in_parts(
    command: CommandLine, closed: str, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("acks=1\ntransactional.id=t\n")
    options = ("--command-config", str(file), "--client-property", "linger.ms=5s")
    found = command.json("doctor", closed, *options, status=EXIT_FAILED)
    assert (found["healthy"], found["cluster_id"], found["brokers"]) == (False, None, [])
    assert [(one["name"], one["subject"]) for one in found["findings"]] == [
        ("refused", closed),
        ("client-setting", "linger.ms"),
        ("client-setting", "acks"),
    ]
    assert all(one["why"] and one["remedy"] for one in found["findings"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "'nowhere' is not host:port"),
        (("h:1", "--client-property", "acks"), "--client-property acks: write it as NAME=VALUE"),
        (("h:1", "--command-config", "/nowhere"), "/nowhere: No such file or directory"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    command: CommandLine, words: tuple[str, ...], message: str
) -> None:
    assert message in command("doctor", *words, status=EXIT_USAGE)
