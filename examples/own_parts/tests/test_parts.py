"""The parts work in a simulated run, on real processes, and on a history in a file."""

from pathlib import Path

import pyarrow.compute as pc
import pytest
from shop_lab import faults

from quorumlog.chaos.verify import verify_history
from quorumlog.testing import ChaosRun


@pytest.mark.chaos(workload="stock_takes", faults=["blink"], duration="20s", simulated=True)
def test_in_simulation(chaos_run: ChaosRun) -> None:
    assert "pause" in pc.unique(chaos_run.history.column("f")).to_pylist()
    assert chaos_run.verdict.valid


@pytest.mark.chaos(
    workload="stock_takes", faults=["blink", "stop_warehouse"], duration="9s", driver="client-lz4"
)
def test_on_real_processes(chaos_run: ChaosRun) -> None:
    rows = {*pc.unique(chaos_run.history.column("f")).to_pylist()}
    assert {"pause", "resume", "stop_warehouse", "stop-stop_warehouse"} <= rows
    assert not faults.WAREHOUSE.exists()
    assert chaos_run.verdict.valid


@pytest.mark.parametrize(
    ("model", "values", "found"),
    [
        ("latch", [("set", None), ("look", True)], []),
        ("latch", [("set", None), ("look", False)], ["nonlinearizable"]),
        ("rising", [("read", 1), ("read", 2)], []),
        ("rising", [("read", 2), ("read", 1)], ["fallen"]),
    ],
)
def test_a_history_is_judged(
    tmp_path: Path, model: str, values: list[tuple[str, object]], found: list[str]
) -> None:
    history = tmp_path / "history.jsonl"
    lines = []
    for f, value in values:
        for type_ in ("invoke", "ok"):
            shown = "null" if value is None or type_ == "invoke" else str(value).lower()
            lines.append(f'{{"process": 0, "type": "{type_}", "f": "{f}", "value": {shown}}}')
    history.write_text("\n".join(lines) + "\n")
    verdict = verify_history(history, model=model, engine="local")
    assert verdict.valid is (not found)
    assert [result.name for result in verdict.results] == found
