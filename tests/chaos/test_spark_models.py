"""Spark gives every model the verdict that the local engine gives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.history import HistoryError, read_history
from quorumlog.chaos.spark.engine import check_on_spark
from quorumlog.chaos.spark.session import spark_session
from quorumlog.chaos.workloads.registry import find_workload
from tests.support.chaos.transaction_runs import judged

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
ROOT = Path(__file__).parents[1] / "data/histories"


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[Any]:
    with spark_session("local[2]", is_short=True) as session:
        yield session


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("porcupine/jepsen/etcd_000.log", "cas-register"),
        ("porcupine/kv/c10-bad.txt", "kv"),
        ("elle/paper-example.edn", "list-append"),
        ("elle-cli/bank.json", "bank"),
        ("elle-cli/set_full.json", "set-full"),
    ],
)
def test_a_model_gets_the_same_verdict(name: str, model: str) -> None:
    local = check_history(read_history(ROOT / name), model).as_json()
    assert check_on_spark(ROOT / name, model=model).as_json() == local


def test_a_history_that_does_not_fit_the_model_is_the_same_error() -> None:
    with pytest.raises(HistoryError, match="f = 'transfer' is no operation of the model set"):
        check_on_spark(ROOT / "elle-cli/bank.json", model="set")


@pytest.mark.parametrize(
    ("workload", "fault", "valid"),
    [
        ("txn_append", "", True),
        ("txn_append", "shows_open", False),
        ("consume_transform_produce", "zombies_accepted", False),
        ("txn_transfer", "half_aborted", False),
    ],
)
def test_transactions_get_the_same_verdict(
    workload: str, fault: str, valid: bool, tmp_path: Path
) -> None:
    local, _ = judged(tmp_path, workload, 1, fault)
    assert local.valid is valid
    on_spark = check_on_spark(tmp_path, model=find_workload(workload).model)
    assert {**on_spark.as_json(), "seconds": 0, "engine": ""} == {
        **local.as_json(),
        "seconds": 0,
        "engine": "",
    }
