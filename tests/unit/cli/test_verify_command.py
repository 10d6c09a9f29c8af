"""`quorumlog verify` of the histories of other tools: its options and its exit status."""

from pathlib import Path

import pytest

from quorumlog.cli.output import EXIT_FAILED, EXIT_UNKNOWN, EXIT_USAGE, EXIT_VALID
from tests.support.cli.in_process import CommandLine

HAND_MADE = Path(__file__).parents[2] / "data/histories/hand-made"
WRITES = (
    "{:process 0, :type :invoke, :f :write, :value [0 1]}\n"
    "{:process 0, :type :ok, :f :write, :value [0 1]}\n"
)


@pytest.mark.parametrize("pairs", ["keys", "values"])
def test_the_option_decides_what_pairs_are(
    command: CommandLine, tmp_path: Path, pairs: str
) -> None:
    file = tmp_path / "history.edn"
    file.write_text(WRITES)
    words = ("verify", file, "--engine", "local", "--model", "register")
    command(*words, status=EXIT_UNKNOWN)
    assert "--pairs keys or --pairs values decides" in command.said
    command(*words, "--pairs", pairs, status=EXIT_VALID)


def test_our_own_histories_have_no_pairs_to_decide_about(
    command: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "history.jsonl").write_text('{"quorumlog_history": 2}\n{"end": {"events": 0}}\n')
    command("verify", tmp_path, "--engine", "local", "--pairs", "keys", status=EXIT_USAGE)
    assert "--pairs applies to histories of other tools only" in command.said


def test_a_model_has_its_parameter(command: CommandLine) -> None:
    words = ("verify", HAND_MADE / "stale-read.edn", "--engine", "local", "--model")
    command(*words, "list-append", status=EXIT_VALID)
    command(*words, "list-append=strict-serializable", status=EXIT_FAILED)
    assert "G-single-realtime: 1 (invalid)" in command.out
    command(*words, "list-append=linearizable", status=EXIT_USAGE)
    assert "choose from serializable, strict-serializable, snapshot-isolation" in command.said
