"""The command line as scripts see it: statuses, one JSON document, one line for what is wrong."""

import errno
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.chaos.faults.processes import Kill
from quorumlog.chaos.faults.quorum import FalseNotice
from quorumlog.chaos.schedule import Action, Schedule
from quorumlog.cli import connect
from quorumlog.cli.connect import resolve
from quorumlog.cli.main import COMMANDS
from quorumlog.cli.output import EXIT_FAILED, EXIT_UNKNOWN, EXIT_USAGE
from tests.support.cli import every_help
from tests.support.cli.in_process import CommandLine


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["up", "--nodes", "many"], EXIT_USAGE, "--nodes"),
        (["up", "--nodes", "0"], EXIT_USAGE, "'--nodes'"),
        (["up", "--controllers", "1"], EXIT_USAGE, "go together"),
        (["up", "--config", "novalue", "--dir", "{tmp}"], EXIT_USAGE, "write it as NAME=VALUE"),
        (["up", "--config", "num.partition=1"], EXIT_USAGE, "did you mean num.partitions?"),
        (["up", "--config", "node.id=7"], EXIT_USAGE, "each node has its own"),
        (["up", "--config", "ssl.cipher.suites=k"], EXIT_USAGE, "quorumlog has no"),
        (["up", "--port", "60000", "--dir", "{tmp}"], EXIT_USAGE, "choose one from 1 to"),
        (["up", "--port", "70000", "--dir", "{tmp}"], EXIT_USAGE, "choose one from 1 to"),
        (["up", "--defaults", "slow", "--dir", "{tmp}"], EXIT_USAGE, "'fast', 'kafka', 'safe'"),
        (["up", "--one", "--nodes", "1", "--dir", "{tmp}"], EXIT_USAGE, "leave --nodes, --con"),
        (["up", "--one", "--brokers", "1", "--dir", "{tmp}"], EXIT_USAGE, "--one is --nodes 1"),
        (["up", "--detach", "--until-stdin-closes"], EXIT_USAGE, "runs until `down`"),
        (["up", "--as-version", "3.9.1", "--dir", "{tmp}"], EXIT_USAGE, "did you mean 3.9?"),
        (["up", "--as-version", "5.0", "--dir", "{tmp}"], EXIT_USAGE, "there are 2.8, 3.0, "),
        (["up", "--config", "as.version=5", "--dir", "{tmp}"], EXIT_USAGE, "one of: 2.8, 3.0"),
        (["up", "--seed", "{tmp}/absent", "--dir", "{tmp}"], EXIT_USAGE, "No such file"),
        (["down", "--dir", "{tmp}"], EXIT_FAILED, "holds no cluster"),
        (["status", "--dir", "{tmp}"], EXIT_FAILED, "holds no cluster"),
        (["node", "kill", "1", "--dir", "{tmp}"], EXIT_FAILED, "holds no cluster"),
        (["topics", "list", "--dir", "{tmp}"], EXIT_FAILED, "holds no cluster"),
        (["nonsense"], EXIT_USAGE, "No such command"),
        (["lag"], EXIT_USAGE, "Did you mean: quorumlog groups lag?"),
        (["configs", "describe", "topics", "t"], EXIT_USAGE, "'topics' is not one of 'topic'"),
        (["verify", "run", "--engine", "sparc"], EXIT_USAGE, "'auto', 'spark', 'local'"),
        (["chaos", "list", "fault"], EXIT_USAGE, "did you mean faults?"),
        (["produce", "t", "--acks", "2"], EXIT_USAGE, "'all', '-1', '1', '0'"),
        (["produce", "t", "--header", "h"], EXIT_USAGE, "write it as NAME=VALUE"),
        (["consume", "t", "--format", "%x"], EXIT_USAGE, "%x is no token; use %t %p"),
        (["consume", "t", "--format", "%s", "--json"], EXIT_USAGE, "give only one of"),
        (["consume", "t", "--from", "middle"], EXIT_USAGE, "be beginning, end, or a duration"),
        (["consume", "t", "--from", "1h"], EXIT_USAGE, "a duration of ISO 8601 such as PT1H"),
        (["verify", "{tmp}/absent"], EXIT_USAGE, "no such file"),
        (["verify", "{tmp}"], EXIT_UNKNOWN, "{tmp}"),
        (["chaos", "run", "--fault", "flood"], EXIT_USAGE, "no fault is called 'flood'"),
        (["chaos", "run", "--fault", "power_loss"], EXIT_USAGE, "cannot do it"),
        (["chaos", "run", "--workload", "bank"], EXIT_USAGE, "no workload is called 'bank'"),
        (["chaos", "run", "--driver", "telnet"], EXIT_USAGE, "no driver is called 'telnet'"),
        (["chaos", "run", "--bootstrap", "h:1"], EXIT_USAGE, "use --fault none"),
        (["chaos", "run", "--duration", "soon"], EXIT_USAGE, "is not a duration"),
        (["simulate", "--mutant", "x"], EXIT_USAGE, "vote_not_persisted"),
        (["simulate", "--faults", "x"], EXIT_USAGE, "power_loss"),
        (["simulate", "--schedule", "x"], EXIT_USAGE, "has no schedule for a simulation"),
        (["simulate", "--world", "x"], EXIT_USAGE, "quorum"),
        (["simulate", "--workload", "append_read"], EXIT_USAGE, "applies to whole nodes only"),
        (["simulate", "nodes", "--workload", "bank"], EXIT_USAGE, "no workload is called 'bank'"),
    ],
)
def test_what_is_wrong_is_one_line_and_a_status(  # noqa: PLR0917 - three of them are fixtures
    arguments: list[str],
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: CommandLine,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [text.replace("{tmp}", str(tmp_path)) for text in arguments]
    shown = command(*given, status=status)
    assert said.replace("{tmp}", str(tmp_path)) in shown
    assert "Traceback" not in shown
    assert "Value error" not in shown
    assert list(tmp_path.iterdir()) == []
    assert command.out == "" if "--json" not in given else said in json.loads(command.out)["error"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("up --nodes 0", EXIT_USAGE, "--nodes"),  # before the command has seen its options
        ("up --port 60000", EXIT_USAGE, "choose one from"),
        ("down", EXIT_FAILED, "holds no cluster"),
        ("status", EXIT_FAILED, "holds no cluster"),
        ("node pause 1", EXIT_FAILED, "holds no cluster"),
        ("topics delete t --dir absent", EXIT_FAILED, "holds no cluster"),
        ("nonsense", EXIT_USAGE, "No such command"),
        ("verify .", EXIT_UNKNOWN, "history"),
    ],
)
def test_with_json_what_is_wrong_is_one_document(  # noqa: PLR0917 - three of them are fixtures
    words: str,
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: CommandLine,
) -> None:
    monkeypatch.chdir(tmp_path)
    document = command.json(*words.split(), status=status)
    assert said in str(document.get("error") or document["unknown_because"])


@pytest.mark.parametrize("words", [("topics", "list"), ("produce", "t"), ("consume", "t")])
def test_addresses_that_refuse_are_named_without_a_client_that_tries_on(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, command: CommandLine
) -> None:
    monkeypatch.setattr(connect, "_REFUSED_MAX_S", 0.2)
    servers = ("--bootstrap", "127.0.0.1:1,127.0.0.1:2")
    assert command(*words, *servers, status=EXIT_FAILED) == (
        "quorumlog: connection refused by 127.0.0.1:1, 127.0.0.1:2: no process listens there\n"
    )
    said = command(*words, "--bootstrap", "127.0.0.1", status=EXIT_USAGE)
    assert "--bootstrap: '127.0.0.1' is not host:port" in said
    said = command(*words, "--bootstrap", "", status=EXIT_USAGE)  # as of an unset variable
    assert "--bootstrap must name at least one host:port" in said


def test_json_behind_two_dashes_is_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: CommandLine
) -> None:
    monkeypatch.chdir(tmp_path)
    command("topics", "delete", "--dir", "absent", "--", "--json", status=EXIT_FAILED)
    assert command.out == ""


def test_without_words_there_is_help_and_a_version(command: CommandLine) -> None:
    bare = command()
    assert (command("-h"), command.said) == (bare, "")
    assert "quorumlog up --detach" in bare
    assert command("--version").strip()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_whose_lines_are_whole(name: str, command: CommandLine) -> None:
    (line,) = [line for line in command().splitlines() if line.startswith(f"  {name} ")]
    assert line.endswith(COMMANDS[name].summary)  # not cut
    shown = command(name, "-h")
    assert all(f"    {example}\n" in shown for example in COMMANDS[name].examples)
    if COMMANDS[name].examples:
        assert "..." not in shown.replace("HOST:PORT,...", "").replace("FILE...", "")


def test_help_names_a_required_argument_and_a_default_without_brackets_of_their_own() -> None:
    for words in every_help.every_command():
        shown = every_help.show_help(words)
        usage, _, _ = shown.partition("\n\n")
        assert "{" not in usage, usage
        assert "....." not in usage, usage
        assert "[default: (" not in shown, shown
        assert "[[" not in shown, shown


def test_a_closed_stdin_is_one_line(monkeypatch: pytest.MonkeyPatch, command: CommandLine) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in command("produce", "t", status=EXIT_USAGE)


def test_a_simulation_prints_one_document(command: CommandLine) -> None:
    document = command.json("simulate", "--seed", "3", "--duration", "3s")
    assert document["valid"] is True
    assert (document["seed"], document["seeds"], document["violations"]) == (3, 1, [])
    assert {"digest", "virtual_s", "cpu_s", "operations"} <= document.keys()


BROKEN = ("--seed", "15", "--duration", "3s", "--mutant", "no_log_check_in_votes")


def test_the_smallest_schedule_needs_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: CommandLine
) -> None:
    monkeypatch.chdir(tmp_path)
    command("simulate", "--shrink", "quorum", *BROKEN, "--json", status=EXIT_FAILED)
    assert "--schedule shrunk-15.json" in command.said
    assert Schedule.from_json(Path("shrunk-15.json").read_text()).seed == 15


def test_a_broken_rule_is_status_1_and_has_a_schedule(tmp_path: Path, command: CommandLine) -> None:
    schedule = tmp_path / "smallest.json"
    said = command("simulate", *BROKEN, "--shrink", schedule, status=EXIT_FAILED)
    assert "seed 15: leader-completeness" in command.out
    assert "trace of seed 15:\n     0.000 " in said
    assert "     0.000 1: starts\n" in said
    again = "--world quorum --seed 15 --duration 3s --nodes 3 --mutant no_log_check_in_votes"
    assert f"again: quorumlog simulate {again}\n" in said
    assert f"shrink: quorumlog simulate {again} --shrink\n" in said
    without = ["simulate", "--schedule", schedule]
    command(*without, "--mutant", "no_log_check_in_votes", status=EXIT_FAILED)
    command(*without)
    schedule.write_text("{}")
    assert "has no schedule for a simulation" in command(*without, status=EXIT_USAGE)
    drawn = Schedule(seed=1, duration_us=0, actions=(), workload="groups", options={})
    schedule.write_text(drawn.to_json())
    assert "no workload is called 'groups'" in command(*without, status=EXIT_USAGE)
    sends = replace(drawn, workload="append_read")
    kill = Action(t_us=0, fault=Kill(), target=(9,))
    for unfit, text in (
        (replace(sends, options={"colour": 1}), "colour"),
        (replace(sends, actions=(kill,)), "names other nodes than [1, 2, 3]"),
        (replace(sends, actions=(replace(kill, fault=FalseNotice()),)), "cannot do it"),
    ):
        schedule.write_text(unfit.to_json())
        assert text in command(*without, status=EXIT_USAGE)


def test_the_address_of_a_cluster_that_no_option_names_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(connect, "_refuses", lambda *_: False)
    assert resolve(None) == {"bootstrap_servers": "127.0.0.1:9092"}
    assert "no cluster in quorumlog-data" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [BrokenPipeError(errno.EPIPE, "closed"), OSError(errno.ENOSPC, "no space")]
)
@pytest.mark.parametrize(
    ("word", "status"), [("verify", EXIT_UNKNOWN), ("chaos", EXIT_UNKNOWN), ("status", EXIT_FAILED)]
)
def test_output_that_cannot_be_written_is_no_verdict(
    error: OSError, word: str, status: int, monkeypatch: pytest.MonkeyPatch, command: CommandLine
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr("quorumlog.cli.main._run", fail)
    monkeypatch.setattr("quorumlog.cli.main._drop_stdout", lambda: None)
    command(word, status=status)
