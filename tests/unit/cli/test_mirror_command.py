"""`quorumlog mirror`: options that contradict each other, and the table of `status`."""

from typing import Any

import pytest

from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE
from quorumlog.mirror.core.position_records import Checkpoint, Generation
from quorumlog.mirror.errors import MirrorRefused
from quorumlog.mirror.io import status
from quorumlog.mirror.io.status import MirrorStatus, PartitionStatus
from quorumlog.mirror.settings import MirrorSettings
from tests.support.cli.in_process import CommandLine, Shell

GENERATION = Generation(
    instance="i",
    started_ms=7,
    source_cluster="s",
    target_cluster="t",
    topics=("orders",),
    exclude=(),
    prefix="source.",
)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "--topic is missing"),
        (["--topic", "t"], "--from is missing: name the brokers there, or in the file of"),
        (["--topic", "t", "--from", "{}"], "--to is missing"),
        (["--topic", "t", "--from", "{}", "--to", "h"], "--to: 'h' is not host:port"),
        (["--topic", "t", "--from", "", "--to", "{}"], "--from must name at least one host:port"),
        (["--topic", "(", "--from", "{}", "--to", "{}"], "'(' is no regular expression"),
        (["--topic", "t", "--from", "{}", "--to", "{}", "--alias", "a b"], "alias 'a b'"),
        (
            ["--topic", "t", "--from", "{}", "--to", "{}", "--prefix", "a.", "--same-name"],
            "--prefix and --same-name exclude each other",
        ),
        (["--topic", "t", "--from", "{}", "--to", "{}", "--group-interval", "x"], "a duration"),
        (["--topic", "t", "--from", "{}", "--to", "{}", "--mm2-compatible"], "target_alias"),
        (["--topic", "t", "--recreated", "again"], "again"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(
    shell: Shell, command: CommandLine, words: list[str], sentence: str
) -> None:
    line = [word.format(shell.cluster.bootstrap) for word in words]
    assert sentence in command("mirror", *line, status=EXIT_USAGE)


def test_a_side_that_refuses_connections_is_named(command: CommandLine) -> None:
    said = command(
        "mirror", "--topic", "t", "--from", "127.0.0.1:1", "--to", "127.0.0.1:1", status=EXIT_FAILED
    )
    assert "connection refused by 127.0.0.1:1" in said


def give_status(monkeypatch: pytest.MonkeyPatch, found: MirrorStatus | None) -> None:
    async def read_status(settings: MirrorSettings) -> MirrorStatus:
        if found is None:
            raise MirrorRefused(f"the target has no {settings.positions_topic}")
        return found

    monkeypatch.setattr(status, "read_status", read_status)


def shown(command: CommandLine, shell: Shell, *words: str, **options: Any) -> str:
    place = shell.cluster.bootstrap
    return command("mirror", "status", "--from", place, "--to", place, *words, **options)


def test_status_has_the_lag_of_each_partition_and_why_a_topic_stopped(
    shell: Shell, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = (
        PartitionStatus(topic="orders", partition=0, position=5, end=9, lag=4, lag_ms=2_500),
        PartitionStatus(topic="orders", partition=1, position=5, end=-1, lag=-1, lag_ms=None),
    )
    checkpoint = Checkpoint(time_ms=1, groups=2, stopped={"bills": "full"})
    found = MirrorStatus(generation=GENERATION, checkpoint=checkpoint, partitions=partitions)
    give_status(monkeypatch, found)
    lines = shown(command, shell).splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["TOPIC", "PARTITION", "POSITION", "END", "LAG", "LAG-SECONDS"],
        ["orders", "0", "5", "9", "4", "2.5"],
        ["orders", "1", "5", "-", "-", "-"],
    ]
    assert lines[3] == "bills stopped: full"
    assert lines[4].startswith("last checkpoint: ")
    place = shell.cluster.bootstrap
    document = command.json("mirror", "status", "--from", place, "--to", place)
    assert (document["lag"], document["groups"], document["stopped"]) == (4, 2, {"bills": "full"})
    assert document["partitions"][0]["lag_ms"] == 2_500


def test_status_without_a_mirror_is_an_error(
    shell: Shell, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_status(monkeypatch, None)
    said = shown(command, shell, "--alias", "east", status=EXIT_FAILED)
    assert "the target has no mirror.east.positions" in said


def test_a_mirror_that_has_not_moved_groups_has_no_checkpoint(
    shell: Shell, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_status(monkeypatch, MirrorStatus(generation=GENERATION, checkpoint=None, partitions=()))
    assert shown(command, shell) == "last checkpoint: none yet\n"


def test_help_names_the_commands(command: CommandLine) -> None:
    assert "status" in command("mirror", "--help")
