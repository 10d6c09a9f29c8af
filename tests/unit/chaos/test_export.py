"""What is exported for the checkers of others is read again, and judged as before."""

from pathlib import Path

import pytest

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.history import read_history
from quorumlog.chaos.history.edn import read_forms
from quorumlog.chaos.history.export import Format, exported
from tests.support.chaos.hand_made_histories import History

ROOT = Path(__file__).parents[2] / "data/histories"
FILES = [
    ("porcupine/jepsen/etcd_000.log", "cas-register"),
    ("porcupine/kv/c01-bad.txt", "kv"),
    ("knossos/cas-register/bad/rethink-fail-minimal.edn", "cas-register"),
    ("elle/paper-example.edn", "list-append"),
    ("elle-cli/bank-negative-balances.json", "bank"),
    ("elle-cli/rw-register.json", "rw-register"),
]


@pytest.mark.parametrize("format_", ["edn", "jsonl"])
@pytest.mark.parametrize(("name", "model"), FILES)
def test_an_export_is_read_as_it_was(
    name: str, model: str, format_: Format, tmp_path: Path
) -> None:
    table = read_history(ROOT / name)
    file = tmp_path / f"history.{format_}"
    file.write_text("\n".join(exported(table, format_)))
    again = read_history(file)
    for column in ("process", "f", "type", "invoked", "completed", "micro"):
        assert again.column(column).to_pylist() == table.column(column).to_pylist()
    assert check_history(again, model).valid is check_history(table, model).valid


def test_a_kafka_history_is_written_as_jepsen_does(tmp_path: Path) -> None:
    table = History().sent(1).nemesis("kill", "2").final((0, 1), end=1).table()
    lines = [*exported(table, "edn")]
    assert [form.value["f"] for form in read_forms("\n".join(lines))] == [
        "send",
        "send",
        "kill",
        *["poll"] * (len(lines) - 3),
    ]
    assert ':value [[:send "x-0" [0 1]]]' in lines[1]
    assert ':process :nemesis, :type :info, :f :kill, :value "2"' in lines[2]
    assert '[[:poll {"x-0" [[0 1]]}]]' in lines[-1]
    file = tmp_path / "history.edn"
    file.write_text("\n".join(lines))
    assert check_history(read_history(file)).valid is True
