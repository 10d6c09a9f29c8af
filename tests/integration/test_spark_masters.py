"""Checks on real Spark masters: a worker in another network, none at all, spark-submit."""

import sys
from pathlib import Path

import pytest

from quorumlog.chaos.history import HistoryWriter
from quorumlog.chaos.spark import SparkUnavailable
from quorumlog.chaos.verify import verify_history
from tests.support.chaos.hand_made_histories import rows_of
from tests.support.chaos.random_histories import good, lose
from tests.support.spark.standalone import SHORT_LIVED, master, other_network, submit, worker

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.xdist_group("spark-masters")]

SCRIPT = """
import sys
from pyspark import SparkContext
from quorumlog.chaos.verify import verify_history

for _ in range(2):
    verdict = verify_history(sys.argv[1])
    context = SparkContext._active_spark_context
    print(verdict.engine, verdict.valid, context.master, context.getConf().get("spark.app.name"))
"""


@pytest.fixture
def history(tmp_path: Path) -> Path:
    sketch = good(1)
    lose(sketch)
    with HistoryWriter(tmp_path / "run") as writer:
        for row in rows_of(sketch.ops):
            writer.write(row)
    return tmp_path / "run"


def test_a_worker_in_another_network_reaches_the_driver(history: Path, tmp_path: Path) -> None:
    with (
        other_network() as (inside, ours, theirs),
        master(tmp_path, ours) as url,
        worker(url, tmp_path, theirs, inside),
    ):
        conf = {
            "spark.pyspark.python": sys.executable,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": SHORT_LIVED,
        }
        verdict = verify_history(f"file://{history}", master=url, spark_conf=conf)
    assert (verdict.engine, verdict.valid) == ("spark", False)
    assert [result.name for result in verdict.results][:1] == ["lost-write"]


def test_a_master_without_workers_is_told_of(history: Path, tmp_path: Path) -> None:
    with master(tmp_path) as url:
        conf = {"spark.quorumlog.executorTimeout": "2"}
        with pytest.raises(
            SparkUnavailable, match=r"gave no executor within 2 s: .* 127\.0\.0\.1:"
        ):
            verify_history(history, master=url, spark_conf=conf)


def test_what_spark_submit_asks_for_wins(history: Path, tmp_path: Path) -> None:
    script = tmp_path / "judge.py"
    script.write_text(SCRIPT)
    said = submit("local[1]", ["--name", "mine", str(script), str(history)], tmp_path)
    assert said.splitlines() == ["spark False local[1] mine"] * 2
