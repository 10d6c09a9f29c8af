"""The histories that other projects publish, and Jepsen's vectors, get their known verdicts."""

import csv
import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.checkers import Severity, check_history
from quorumlog.chaos.checkers.registry import guess_model
from quorumlog.chaos.history import HistoryError, read_history
from quorumlog.chaos.verify import verify_history
from tests.support.chaos.hand_made_histories import found

VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/histories/kafka-vectors.jsonl")
    .read_text()
    .splitlines()
]

# Found and named, and no fault of Kafka's, whose transactions do not isolate their writes.
LEGAL = {"G0", "G0-realtime", "int-send-skip"}
# Nothing was acknowledged in these, so nothing that could be lost was proved to be there.
UNKNOWN = {"info-read-is-legal"}


def read(vector: dict[str, Any], directory: Path) -> Any:
    file = directory / "history.json"
    file.write_text("\n".join(json.dumps(operation) for operation in vector["history"]))
    return read_history(file)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_vector_gives_what_it_must_and_no_more(vector: dict[str, Any], tmp_path: Path) -> None:
    verdict = check_history(read(vector, tmp_path))
    names, expected = set(found(verdict)), set(vector["expect"])
    allowed = expected | set(vector["may_also"])
    assert all(any(fnmatch(name, one) for one in allowed) for name in names)
    assert all(any(fnmatch(name, one) for name in names) for one in expected)
    if names and names <= LEGAL:
        assert verdict.valid is True
    elif not expected:
        assert verdict.valid == ("unknown" if vector["name"] in UNKNOWN else True)
    else:
        assert verdict.valid is False
        bad = [result for result in verdict.results if result.name not in LEGAL]
        assert all(result.severity is Severity.INVALID for result in bad)


def test_all_files_and_vectors_are_judged() -> None:
    assert {*UNKNOWN} <= {vector["name"] for vector in VECTORS}
    names = {name for name, _, _ in KNOWN}
    files = {
        file.relative_to(ROOT).as_posix()
        for file in ROOT.glob("*/**/*")
        if file.suffix in (".log", ".txt", ".edn", ".json")
    }
    assert names == files


def test_an_array_of_operations_is_read_as_lines_are(tmp_path: Path) -> None:
    lines = read(VECTORS[2], tmp_path)
    array = tmp_path / "array.json"
    array.write_text(json.dumps(VECTORS[2]["history"], indent=1))
    assert read_history(array).equals(lines)


ROOT = Path(__file__).parents[1] / "data/histories"
ELLE_CLI = {
    "bank.json": ("bank", True),
    "bank-negative-balances.json": ("bank", False),
    "counter.json": ("counter", True),
    "set.edn": ("set", True),
    "set_full.json": ("set-full", False),
    "rw-register.json": ("rw-register", True),
}
HAND_MADE = [
    ("long-fork-bad.edn", "long-fork", False),
    ("long-fork-good.edn", "long-fork", True),
    ("long-fork-good.edn", "rw-register", True),
    ("multi-register-good.edn", "multi-register", True),
    ("multi-register-good.edn", 'multi-register={"x": 0, "y": 0}', True),
    ("multi-register-good.edn", 'multi-register={"x": 0, "y": 1}', False),
    ("multi-register-bad.edn", "multi-register", False),
    ("stale-read.edn", "list-append", True),
    ("stale-read.edn", "list-append=serializable", True),
    ("stale-read.edn", "list-append=strict-serializable", False),
    ("stale-read.edn", "list-append=snapshot-isolation", True),
    ("independent-good.edn", "cas-register", True),
    ("independent-bad.edn", "cas-register", False),
    ("mutex-bad.json", "mutex", False),
    ("bank-bad.edn", "bank", False),
    ("cas-register-bad.edn", "cas-register", False),
]
LONG = 6_000  # bytes: longer files are judged by `make test` alone


def _etcd() -> list[tuple[str, str, bool]]:
    with (ROOT / "porcupine/etcd_verdicts.csv").open() as file:
        return [
            (row["file"], "cas-register", row["linearizable"] == "true")
            for row in csv.DictReader(file)
        ]


def _named(pattern: str, model: str, good: str) -> list[tuple[str, str, bool]]:
    files = sorted(ROOT.glob(pattern))
    return [(str(file.relative_to(ROOT)), model, good in file.as_posix()) for file in files]


KNOWN = [
    *_etcd(),
    *_named("porcupine/kv/*.txt", "kv", "-ok"),
    *_named("knossos/cas-register/*/*.edn", "cas-register", "/good/"),
    ("elle/paper-example.edn", "list-append", False),
    *((f"elle-cli/{name}", *known) for name, known in ELLE_CLI.items()),
    *((f"hand-made/{name}", model, is_valid) for name, model, is_valid in HAND_MADE),
]
AMBIGUOUS = {"elle-cli/counter.json", "elle-cli/set.edn", "elle-cli/set_full.json"}
CASES = [
    pytest.param(
        *known, marks=[pytest.mark.integration] * ((ROOT / known[0]).stat().st_size > LONG)
    )
    for known in KNOWN
]


@pytest.mark.parametrize(("name", "model", "is_valid"), CASES)
def test_a_published_history_has_its_verdict(name: str, model: str, *, is_valid: bool) -> None:
    table = read_history(ROOT / name)
    verdict = check_history(table, model)
    assert verdict.valid is is_valid, verdict.as_json()
    assert verdict.operations > 0
    if not is_valid:
        witness = verdict.results[0].witnesses[0]
        assert witness["ops"]
        assert all(op["index"] >= 0 and op["f"] for op in witness["ops"])


@pytest.mark.parametrize(
    "name",
    ["porcupine/jepsen/etcd_000.log", "porcupine/kv/c01-bad.txt", "elle-cli/rw-register.json"],
)
def test_the_model_is_known_if_only_one_has_the_operations(name: str) -> None:
    (expected,) = (known for known in KNOWN if known[0] == name)
    assert guess_model(read_history(ROOT / name)) == expected[1]
    assert verify_history(ROOT / name, engine="local").model == expected[1]


@pytest.mark.parametrize(
    ("name", "model"),
    [("long-fork-good.edn", "rw-register"), ("multi-register-good.edn", "multi-register")],
)
def test_the_model_of_transactions_is_known_by_their_operations(name: str, model: str) -> None:
    assert guess_model(read_history(ROOT / "hand-made" / name)) == model


@pytest.mark.parametrize("name", sorted(AMBIGUOUS))
def test_a_history_that_fits_several_models_is_not_judged_by_any(name: str) -> None:
    with pytest.raises(HistoryError, match=r"fit several models: choose one of .*counter") as error:
        verify_history(ROOT / name, engine="local")
    assert str(ROOT / name) in str(error.value)


def test_a_history_of_operations_that_no_model_has_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    file.write_text('[{"process":0,"type":"invoke","f":"fly","value":1,"time":0}]')
    with pytest.raises(
        HistoryError, match="no model has the operations fly; the models are kafka_log"
    ):
        verify_history(file, engine="local")
    with pytest.raises(HistoryError, match=r"event 0: f = 'fly' is no operation of the model set"):
        verify_history(file, model="set", engine="local")
