"""Each workload on real processes with a kill and a pause: what the cluster promises holds."""

from pathlib import Path

import pytest

from quorumlog.chaos.faults.registry import step_fault
from quorumlog.chaos.history import read_history
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.schedule import Action, Schedule
from quorumlog.chaos.verify import verify_history
from quorumlog.chaos.workloads.registry import find_workload

pytestmark = pytest.mark.integration

# What a history must hold at the least, even on a loaded machine: (f, type) and how often.
DONE = {
    "group_consume": {("group_poll", "ok"): 10, ("commit", "ok"): 5, ("committed", "ok"): 2},
    "list_offsets": {("list_offsets", "ok"): 20, ("final_list_offsets", "ok"): 5},
    "compacted_register": {("read", "ok"): 10, ("write", "ok"): 20},
    "metadata_linearizable": {("create", "ok"): 6, ("delete", "ok"): 4},
    "recreated_topic": {("recreate", "ok"): 1, ("poll", "ok"): 10, ("send", "ok"): 20},
    "txn_append": {("txn", "ok"): 8, ("txn", "fail"): 1, ("poll", "ok"): 4},
    "txn_transfer": {("transfer", "ok"): 8, ("transfer", "fail"): 1, ("read", "ok"): 2},
    "consume_transform_produce": {("txn", "ok"): 4, ("txn", "fail"): 1, ("committed", "ok"): 2},
}


OPTIONS = {"group_consume": {"static": 1}}  # beside dynamic members


def schedule_of(role: str) -> Schedule:
    actions = (
        Action(t_us=500_000, fault=step_fault("kill")(), target=role, duration_us=800_000),
        Action(t_us=3_500_000, fault=step_fault("pause")(), target=role, duration_us=1_500_000),
    )
    return Schedule(seed=1, duration_us=6_000_000, actions=actions)


@pytest.mark.parametrize("workload", sorted(DONE))
def test_a_kill_and_a_pause_are_survived(tmp_path: Path, workload: str) -> None:
    role = "metadata-leader" if workload == "metadata_linearizable" else "partition-leader"
    settings = RunSettings(
        out=tmp_path,
        workload=workload,
        options=OPTIONS.get(workload, {}),
        schedule=schedule_of(role),
        seed=1,
        duration_s=6.0,
    )
    summary = run(settings, lambda *_: None)
    verdict = verify_history(tmp_path, engine="local", model=find_workload(workload).model)
    assert verdict.valid is True, verdict.as_json()
    assert summary.reads_complete
    assert summary.faults == 2
    rows = read_history(tmp_path).select(["f", "type"]).to_pylist()
    for (f, outcome), least in DONE[workload].items():
        assert rows.count({"f": f, "type": outcome}) >= least, (f, outcome)
