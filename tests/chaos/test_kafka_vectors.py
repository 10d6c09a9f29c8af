"""Jepsen's operations in, Jepsen's anomalies out: every vector."""

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.checkers import Severity, check_history
from quorumlog.chaos.history import read_history
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


def test_what_is_unknown_is_a_vector() -> None:
    assert {*UNKNOWN} <= {vector["name"] for vector in VECTORS}


def test_an_array_of_operations_is_read_as_lines_are(tmp_path: Path) -> None:
    lines = read(VECTORS[2], tmp_path)
    array = tmp_path / "array.json"
    array.write_text(json.dumps(VECTORS[2]["history"], indent=1))
    assert read_history(array).equals(lines)
