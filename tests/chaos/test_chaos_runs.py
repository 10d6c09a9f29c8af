"""Short seeded runs on real processes: each workload and driver passes, a broken rule does not."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.drivers.registry import DRIVERS
from quorumlog.chaos.faults.registry import step_fault
from quorumlog.chaos.history import read_history, read_meta
from quorumlog.chaos.mutants import mutant_module
from quorumlog.chaos.report import write_report
from quorumlog.chaos.report.metrics_plot import over_time
from quorumlog.chaos.run.node_metrics import read_metrics
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings, RunSummary
from quorumlog.chaos.schedule import Action, Schedule
from quorumlog.chaos.verify import verify_history
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.cluster import ClusterShape, LocalCluster

pytestmark = pytest.mark.integration


def action(t_ms: int, fault: str, target: str, duration_ms: int) -> Action:
    return Action(
        t_us=t_ms * 1000, fault=step_fault(fault)(), target=target, duration_us=duration_ms * 1000
    )


EVERY_FAULT = Schedule(
    seed=1,
    duration_us=10_000_000,
    actions=(
        action(300, "kill", "partition-leader", 700),
        action(2_000, "pause", "isr-follower", 500),
        action(3_500, "kill", "metadata-leader", 700),
        action(5_500, "kill_all", "all", 500),
        action(8_000, "pause_kill", "partition-leader", 1_000),
    ),
)
LEADER_ALONE = Schedule(
    seed=1, duration_us=5_000_000, actions=(action(500, "pause_kill", "partition-leader", 2_000),)
)


CALM = Schedule(seed=1, duration_us=2_000_000, actions=())
ONE_NODE: dict[str, Any] = {"shape": ClusterShape(nodes=1), "replication_factor": 1}
"""For faults that one node shows alone: three cost three times as much to start."""


def carry_out(out: Path, schedule: Schedule, **changes: object) -> RunSummary:
    settings = RunSettings(out=out, schedule=schedule, seed=1, **{"duration_s": 10.0, **changes})  # type: ignore[arg-type]  # a test's changes are of the right kind
    return run(settings, lambda *_: None)


RATE = 100
ACKNOWLEDGED_MIN = 30
"""Of about 1,300, so that a run on a loaded machine still shows that records went through."""
RUNS = {"client": "idempotent_send", "confluent": "append_read"}
# In a process of its own: these libraries leave sockets open where no broker answers.
APART = ("aiokafka", "kafka-python")


def test_every_driver_has_a_run() -> None:
    assert {*RUNS, *APART} == set(DRIVERS)


@pytest.mark.parametrize("driver", APART)
def test_every_fault_is_survived_in_a_process_of_its_own(tmp_path: Path, driver: str) -> None:
    schedule, out = tmp_path / "schedule.json", tmp_path / "run"
    schedule.write_text(EVERY_FAULT.to_json())
    command = [sys.executable, "-m", "quorumlog", "chaos", "run", "--driver", driver]
    command += ["--schedule", str(schedule), "--rate", str(RATE)]
    command += ["--engine", "local", "--out", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    verdict = verify_history(out, engine="local")
    assert verdict.valid is True
    assert verdict.figures["faults"] >= len(EVERY_FAULT.actions)
    assert verdict.figures["acknowledged"] > ACKNOWLEDGED_MIN


@pytest.mark.parametrize("driver", sorted(RUNS))
def test_every_fault_is_survived(tmp_path: Path, driver: str) -> None:
    summary = carry_out(
        tmp_path, EVERY_FAULT, driver=driver, workload=RUNS[driver], options={"rate": float(RATE)}
    )
    verdict = verify_history(tmp_path, engine="local")
    assert verdict.valid is True, verdict.as_json()
    assert summary.reads_complete
    assert summary.sends_ok > ACKNOWLEDGED_MIN
    assert summary.faults == len(EVERY_FAULT.actions)
    assert verdict.figures["faults"] >= len(EVERY_FAULT.actions)
    meta = read_meta(tmp_path)
    assert (meta["seed"], meta["faults_carried_out"]) == (1, len(EVERY_FAULT.actions))
    assert meta["topic_settings"]["min.insync.replicas"] == "1"


def test_somebody_elses_cluster_is_judged_without_being_broken(tmp_path: Path) -> None:
    with LocalCluster(nodes=1) as cluster:
        for run_number in (1, 2):  # the second finds the first one's topic, and takes another
            out = tmp_path / str(run_number)
            settings = RunSettings(
                out=out,
                faults=(),
                duration_s=0.5,
                bootstrap=cluster.bootstrap,
                replication_factor=1,
            )
            assert run(settings, lambda *_: None).reads_complete
            assert verify_history(out, engine="local").valid is True


def test_a_leader_that_acknowledges_what_it_alone_holds_is_found(tmp_path: Path) -> None:
    mutant = mutant_module("high-watermark")
    # One partition, so that every producer writes to the leader that is left alone.
    carry_out(tmp_path, LEADER_ALONE, duration_s=5.0, node_module=mutant, partitions=1)
    verdict = verify_history(tmp_path, engine="local")
    assert verdict.valid is False
    names = {result.name for result in verdict.results}
    assert names & {"lost-write", "vanished-write", "unseen", "inconsistent-offsets"}


def test_a_follower_with_other_records_is_found_although_no_client_reads_it(tmp_path: Path) -> None:
    mutant = mutant_module("alters_some_copies")
    summary = carry_out(tmp_path, CALM, duration_s=2.0, node_module=mutant, partitions=1)
    assert summary.reads_complete
    verdict = verify_history(tmp_path, engine="local")
    assert verdict.valid is False
    assert [result.name for result in verdict.results] == ["replicas-differ"]


def test_a_batch_that_is_appended_each_time_it_is_sent_is_found(tmp_path: Path) -> None:
    # No acks=all is answered until the paused follower leaves the ISR. That takes longer than a
    # client waits for an answer, so every producer sends what the leader holds once more.
    pause = action(300, "pause", "isr-follower", 3_500)
    carry_out(
        tmp_path,
        Schedule(seed=1, duration_us=4_000_000, actions=(pause,)),
        duration_s=4.0,
        node_module=mutant_module("forgets-producers"),
        workload="idempotent_send",
        partitions=1,
    )
    verdict = verify_history(tmp_path, engine="local")
    assert verdict.valid is False
    assert "duplicate" in {result.name for result in verdict.results}


@pytest.mark.parametrize(
    ("mutant", "anomaly"), [("spoils-reads", "corrupt-read"), ("low-ends", "log-end-regression")]
)
def test_a_node_that_serves_wrong_data_is_found(tmp_path: Path, mutant: str, anomaly: str) -> None:
    carry_out(tmp_path, CALM, duration_s=2.0, node_module=mutant_module(mutant), **ONE_NODE)
    verdict = verify_history(tmp_path, engine="local")
    assert verdict.valid is False
    assert [result.name for result in verdict.results if result.count > result.explained] == [
        anomaly
    ]


def test_a_planted_bug_of_the_simulation_is_found_on_real_processes(tmp_path: Path) -> None:
    mutant = mutant_module("skips_where_segments_begin")
    small: dict[str, Any] = {"partitions": 1, "config": {"log.segment.bytes": "5000"}}
    carry_out(tmp_path, CALM, duration_s=2.0, node_module=mutant, **small, **ONE_NODE)
    verdict = verify_history(tmp_path, engine="local")
    assert verdict.valid is False
    assert {result.name for result in verdict.results if result.count} & {
        "lost-write", "vanished-write", "poll-skip",
    }  # fmt: skip


def test_a_node_that_serves_late_loses_nothing_and_is_named(tmp_path: Path) -> None:
    schedule = Schedule(
        seed=1, duration_us=9_000_000, actions=(action(300, "kill_all", "all", 500),)
    )
    carry_out(tmp_path, schedule, duration_s=9.0, node_module=mutant_module("late-reads"))
    verdict = verify_history(tmp_path, engine="local")
    assert verdict.valid is not False, verdict.as_json()
    assert "late-read" in {result.name for result in verdict.results}
    assert verdict.figures["worst_lag_ns"] > 10e9


def test_a_node_that_ends_by_itself_is_a_finding(tmp_path: Path) -> None:
    mutant = mutant_module("broken-invariant")
    carry_out(tmp_path, LEADER_ALONE, duration_s=5.0, node_module=mutant)
    verdict = verify_history(tmp_path, engine="local")
    assert verdict.valid is False
    assert "node-ended" in {result.name for result in verdict.results}


def test_a_mirror_between_two_clusters_survives_what_befalls_it_and_them(tmp_path: Path) -> None:
    kill, pause, cut = (step_fault(name)() for name in ("kill", "pause", "isolate_role"))
    actions = (
        Action(t_us=2_000_000, fault=kill, target=(101,), duration_us=500_000),
        Action(t_us=5_000_000, fault=pause, target=(1,), duration_us=1_000_000),
        Action(t_us=7_500_000, fault=cut, target=(101,), duration_us=1_500_000),
    )
    schedule = Schedule(seed=1, duration_us=10_000_000, actions=actions)
    options = {"rate": 100.0, "life_ms": 2_000}
    summary = carry_out(
        tmp_path, schedule, workload="mirror", options=options, duration_s=10.0, **ONE_NODE
    )
    verdict = verify_history(tmp_path, engine="local", model="mirror")
    assert verdict.valid is True, verdict.as_json()
    assert (summary.reads_complete, summary.faults) == (True, 3)
    assert verdict.figures["copied"] >= verdict.figures["acknowledged"] >= ACKNOWLEDGED_MIN
    assert verdict.figures["translated"] > 0
    acts = {one["f"] for row in read_history(tmp_path)["micro"].to_pylist() for one in row}
    assert {"started", "killed"} <= acts
    assert {one.node for one in read_metrics(tmp_path)} == {1, 101}


# What a history must hold at the least, even on a loaded machine: (f, type) and how often.
DONE = {
    "authorized": {
        ("access", "ok"): 6, ("password", "ok"): 3, ("send", "ok"): 5, ("send", "fail"): 5,
        ("read", "ok"): 5, ("login", "ok"): 3, ("open", "ok"): 6,
    },
    "group_consume": {("group_poll", "ok"): 10, ("commit", "ok"): 5, ("committed", "ok"): 2},
    "list_offsets": {("list_offsets", "ok"): 20, ("final_list_offsets", "ok"): 5},
    "compacted_register": {("read", "ok"): 10, ("write", "ok"): 20},
    "metadata_linearizable": {("create", "ok"): 6, ("delete", "ok"): 4},
    "recreated_topic": {("recreate", "ok"): 1, ("poll", "ok"): 10, ("send", "ok"): 5},
    "wire_rules": {
        ("wire_produce", "ok"): 20, ("wire_fetch", "ok"): 20, ("wire_lookup", "ok"): 10,
        ("wire_group", "ok"): 2, ("wire_final", "ok"): 6, ("send", "ok"): 10,
    },
    "txn_append": {("txn", "ok"): 8, ("txn", "fail"): 1, ("poll", "ok"): 4},
    "txn_transfer": {("transfer", "ok"): 8, ("transfer", "fail"): 1, ("read", "ok"): 2},
    "consume_transform_produce": {("txn", "ok"): 4, ("txn", "fail"): 1, ("committed", "ok"): 2},
}  # fmt: skip


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
    metrics = read_metrics(tmp_path)
    assert {one.node for one in metrics} == {1, 2, 3}
    assert role == "metadata-leader" or sum(new for _, new in over_time(metrics).elections) > 0
    page = write_report(tmp_path, verdict, tmp_path / "report.html").read_text()
    assert "<h2>Metrics of the nodes</h2>" in page
