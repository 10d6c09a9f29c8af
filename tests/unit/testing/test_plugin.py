"""The plugin as pytest sees it: what it imports, what it refuses, what it says of a failure.

No cluster is started here: histories are told by hand.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import cast
from xml.etree import ElementTree

import pandas as pd  # noqa: F401 - pyarrow imports it
import pyarrow.compute
import pyarrow.dataset
import pyarrow.json
import pyarrow.parquet  # noqa: F401 - as the next ones
import pytest

# pytester forgets what a run has imported; these would be imported by each run anew.
import quorumlog.chaos.report
import quorumlog.chaos.run
import quorumlog.chaos.verify
import quorumlog.testing.history  # noqa: F401 - as above
from quorumlog.cluster import LocalCluster, NodeSpec
from quorumlog.testing.clusters import watch
from quorumlog.testing.trial import Trial
from tests.support.testing.plugin import NAME, plugin_arguments

HEAVY = ("numpy", "pyarrow", "aiohttp", "typer", "pyspark", "cbor2")
KEPT = """
def test_kept(history):
    for value in range(3):
        with history.send("orders-0", value) as op:
            op.ok(offset=value)
"""
SWAPPED = """
def test_swapped(history):
    for value in range(2):
        with history.send("orders-0", value) as op:
            op.ok(offset=value)
    with history.poll() as op:
        op.ok([("orders-0", 0, 1), ("orders-0", 1, 0)])
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*plugin_arguments(), *arguments)


def test_nothing_heavy_is_imported_when_pytest_starts() -> None:
    code = (
        "import sys, quorumlog.testing.plugin\n"
        f"print([name for name in {HEAVY} if name in sys.modules])\n"
        "print(sorted(name for name in sys.modules if name.startswith('quorumlog')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, ours = done.stdout.splitlines()
    assert heavy == "[]"
    assert not re.search(r"client|chaos\.|cluster|broker|asyncio", ours), ours


def test_a_project_without_our_fixtures_runs_as_before(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")
    run(pytester, "--strict-markers").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("fault='kill'", "no 'fault' - did you mean faults?"),
        ("faults=['kil']", "no fault is called 'kil' - did you mean kill?"),
        ("workload='append_raed'", "did you mean append_read?"),
        ("driver='clinet'", "did you mean client?"),
        ("mutant='high-watermrk'", "did you mean high-watermark?"),
        ("options={'rte': 3}", "append_read has no option 'rte'"),
        ("duration='5 minutes'", "duration = '5 minutes': write 30, '30s', '500ms' or '2m'"),
        ("duration=-1", "duration = -1"),
        ("duration='1ms', seed=1", "has no room for a fault"),
        ("seed='7'", "seed = '7': a whole number is expected"),
        ("simulated=1", "simulated = 1: True or False is expected"),
        ("faults=7", "faults = 7: names are expected"),
        ("config='a=b'", "config = 'a=b': a dict is expected"),
        ("'kill'", "'kill' has no name"),
    ],
)
def test_a_mistyped_mark_is_a_usage_error_before_any_test(
    pytester: pytest.Pytester, mark: str, said: str
) -> None:
    pytester.makepyfile(
        f"""
        import pytest
        def test_other(): pass
        @pytest.mark.chaos({mark})
        def test_marked(): pass
        """
    )
    result = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes()
    assert "test_marked: @pytest.mark.chaos: " in result.stderr.str()
    assert said in result.stderr.str()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--quorumlog-cluster-scope", "sesion"], "did you mean session?"),
        (["-o", "quorumlog_cluster_scope=always"], "there are function, class"),
        (["--quorumlog-seed", "seven"], "a whole number or `random` is expected"),
    ],
)
def test_a_mistyped_option_is_a_usage_error(
    pytester: pytest.Pytester, arguments: list[str], said: str
) -> None:
    pytester.makepyfile("def test_plain(): pass")
    result = run(pytester, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()


def test_a_history_that_is_not_valid_fails_a_test_that_does_not_look(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(SWAPPED)
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "the recorded history is not valid",
            "*- quorumlog -*",
            "INVALID: 5 operations",
            "kept * *test_swapped",
            "repeat  pytest *.py::test_swapped",
        ]
    )


def test_what_is_not_known_is_not_valid(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        KEPT
        + """
    assert history.verdict.valid == "unknown"
    assert not history.verdict.valid
    assert "nothing was polled" in repr(history.verdict)
"""
    )
    run(pytester).assert_outcomes(passed=1)


def test_a_test_that_looks_judges_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        SWAPPED
        + """
    assert history.verdict.valid is False
    assert "inconsistent-offsets" in history.verdict.anomalies
"""
    )
    run(pytester).assert_outcomes(passed=1)


def test_the_run_of_a_failed_test_is_kept_where_it_is_wanted(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SWAPPED + KEPT + "    assert history.verdict.valid == 'unknown'\n")
    run(pytester, "--quorumlog-store", "runs").assert_outcomes(passed=1, failed=1)
    kept = pytester.path / "runs" / "test_it.py-test_swapped"
    assert {path.name for path in kept.iterdir()} == {
        "history.jsonl",
        "history.parquet",
        "meta.json",
        "verdict.json",
        "report.html",
    }
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    run(pytester, "--quorumlog-store", "runs", "--quorumlog-keep")
    assert (kept.parent / "test_it.py-test_kept").exists()


def test_junit_tells_verdict_and_store(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SWAPPED)
    run(pytester, "--junitxml=out.xml")
    properties = {
        str(found.get("name")): str(found.get("value"))
        for found in ElementTree.parse(pytester.path / "out.xml").iter("property")
    }
    assert properties["quorumlog_verdict"] == "invalid"
    assert properties["quorumlog_store"].endswith("test_swapped")


def test_chaos_run_needs_the_mark(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(chaos_run): pass")
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*chaos_run needs @pytest.mark.chaos*"])


class Nodes:
    """What is asked of a cluster in which nodes have ended."""

    def __init__(self, statuses: dict[int, int | None]) -> None:
        self.statuses = statuses

    @property
    def nodes(self) -> list[NodeSpec]:
        return [NodeSpec(id=each, roles=(), kafka="", control="") for each in self.statuses]

    def exit_status(self, node_id: int) -> int | None:
        return self.statuses[node_id]

    def last_words(self, node_id: int) -> str:
        return f"node {node_id} ended"


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ({1: None, 2: None}, []),
        ({1: None, 2: 70}, ["node 2 ended"]),
        ({1: -9, 2: 0}, []),  # killed, or stopped, by the test
    ],
)
def test_a_node_that_ends_by_itself_fails_the_test(
    request: pytest.FixtureRequest, tmp_path: Path, statuses: dict[int, int | None], said: list[str]
) -> None:
    trial = Trial(request.node, tmp_path)
    watch(cast(LocalCluster, Nodes(statuses)), trial)
    assert list(trial.complaints()) == said


def test_the_entry_point_names_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"quorumlog": NAME}
