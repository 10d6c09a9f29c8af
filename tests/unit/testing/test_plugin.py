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
import quorumlog.chaos.run.run
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
MARKED = """
import pytest
def test_other(): pass
@pytest.mark.chaos(%s)
def test_marked(): pass
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


def ran(pytester: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    """Run the tests of one file."""
    pytester.makepyfile(source)
    return run(pytester, *arguments)


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
    ran(pytester, "def test_plain(): pass", "--strict-markers").assert_outcomes(passed=1)


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
        ("seed='7'", "seed = '7': a whole number is expected"),
        ("simulated=1", "simulated = 1: True or False is expected"),
        ("faults=7", "faults = 7: names are expected"),
        ("config='a=b'", "config = 'a=b': a dict is expected"),
        ("security={'sals': 'plain'}", "security: no 'sals' - did you mean sasl?"),
        ("security={'acls': True}", "every client of the run is User:ANONYMOUS"),
        ("security={'sasl': 5}", "sasl=5: it is the name of a mechanism"),
        ("'kill'", "'kill' has no name"),
    ],
)
def test_a_mistyped_mark_is_a_usage_error(pytester: pytest.Pytester, mark: str, said: str) -> None:
    result = ran(pytester, MARKED % mark)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes()
    assert "test_marked: @pytest.mark.chaos: " in result.stderr.str()
    assert said in result.stderr.str()


def test_a_duration_without_room_for_a_fault_ends_its_test(pytester: pytest.Pytester) -> None:
    result = ran(pytester, MARKED % 'duration="1ms", seed=1')
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*test_marked: @pytest.mark.chaos: duration*no room for a fault*"])
    result.stdout.no_fnmatch_line("*another exception*")
    assert "::test_marked: @pytest.mark.chaos" not in run(pytester, "-k", "other").stdout.str()


def test_a_mistyped_mark_of_a_deselected_test_ends_nothing(pytester: pytest.Pytester) -> None:
    ran(
        pytester,
        """
        import pytest
        def test_other(): pass
        @pytest.mark.chaos(faults=["kil"])
        def test_marked(): pass
        """,
        "-k",
        "other",
    ).assert_outcomes(passed=1, deselected=1)


def test_a_marked_test_has_the_history_of_its_run(pytester: pytest.Pytester) -> None:
    result = ran(
        pytester,
        """
        import pytest
        @pytest.mark.chaos(simulated=True, duration="1s", faults=[])
        def test_both(chaos_run, history): pass
        """,
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["@pytest.mark.chaos has its own history: use the*"])


NEMESIS = """
import asyncio
import pytest
from quorumlog.chaos.control.manual_nemesis import ManualNemesis
from tests.support.testing.fake_back_end import FakeBackEnd

@pytest.fixture
def quorumlog_back_end():
    back_end = FakeBackEnd({("partition-leader", "orders"): [2]})
    back_end.refuses = {3}
    return back_end
"""


@pytest.mark.parametrize("is_coroutine", [False, True])
@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("kill('partition-leadr')", "did you mean partition-leader"),
        ("kill(7)", "there is no node 7"),
        ("kill(3)", "NodeUnavailable: kill: no"),
        ("inflict('dely', 'all')", "did you mean delay"),
    ],
)
def test_a_mistake_in_a_verb_is_shown_at_the_line_of_the_test(
    pytester: pytest.Pytester, verb: str, said: str, is_coroutine: bool
) -> None:
    body = f"def test_it(nemesis):\n    nemesis.{verb}\n"
    if is_coroutine:
        body = (
            "def test_it(nemesis):\n    async def work():\n"
            f"        await nemesis.{verb}\n    asyncio.run(work())\n"
        )
    result = ran(pytester, NEMESIS + body)
    result.assert_outcomes(failed=1)
    shown = result.stdout.str()
    assert f"> {' ' * 8 if is_coroutine else ' ' * 4}".rstrip() in shown
    assert f"nemesis.{verb}" in shown
    assert said in shown
    assert "manual_nemesis.py" not in shown
    assert "acts.py" not in shown
    assert "futures" not in shown


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("kill('partition-leadr')", "did you mean partition-leader"),
        ("kill(3)", "a verb of the nemesis that was not awaited has failed: kill: no"),
    ],
)
def test_a_verb_that_nobody_awaits_fails(pytester: pytest.Pytester, verb: str, said: str) -> None:
    result = ran(
        pytester,
        NEMESIS + "def test_it(nemesis):\n    async def work():\n"
        f"        nemesis.{verb}\n    asyncio.run(work())\n",
    )
    result.assert_outcomes(failed=1)  # and no error at its end
    assert said in result.stdout.str()


def test_an_awaited_verb_whose_error_is_expected_is_no_failure(pytester: pytest.Pytester) -> None:
    ran(
        pytester,
        NEMESIS + "def test_it(nemesis):\n    async def work():\n"
        "        with pytest.raises(Exception, match='kill: no'):\n"
        "            await nemesis.kill(3)\n    asyncio.run(work())\n",
    ).assert_outcomes(passed=1)


def test_a_failure_shows_the_nemesis_and_how_long_files_stay(pytester: pytest.Pytester) -> None:
    result = ran(
        pytester,
        NEMESIS + "def test_it(nemesis, history):\n"
        "    nemesis.kill(1)\n    with nemesis.paused('any'): pass\n    assert False\n",
        "--quorumlog-seed",
        "3",
    )
    result.stdout.re_match_lines_random(
        [
            r"nemesis kill 1 at \d+\.\d s \(named\)",
            r"nemesis pause \d at \d+\.\d s \(any\)",
            r"nemesis resume \d at \d+\.\d s",
            r"kept    .*test_it",
            r"        pytest removes it after \d+ runs; --quorumlog-store DIR keeps it",
        ]
    )
    kept = run(pytester, "--quorumlog-seed", "3", "--quorumlog-store", "runs").stdout.str()
    assert "pytest removes it" not in kept


@pytest.mark.parametrize("scope", ["function", "session"])
def test_the_options_of_a_cluster_may_be_parameters(pytester: pytest.Pytester, scope: str) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="session")
        def options_seen(): return []

        @pytest.mark.parametrize("quorumlog_cluster_options", [{"nodes": 1}, {"nodes": 5}])
        @pytest.mark.parametrize("value", [1, 2])
        def test_it(quorumlog_cluster, value, options_seen):
            options_seen.append(quorumlog_cluster)

        def test_all_were_used(options_seen):
            assert sorted(each["nodes"] for each in options_seen) == [1, 1, 5, 5]
        """
    )
    pytester.makeconftest(
        f"""
        import pytest

        @pytest.fixture(scope={scope!r})
        def quorumlog_cluster(quorumlog_cluster_options):
            return dict(quorumlog_cluster_options)
        """
    )
    result = run(pytester, "-o", f"quorumlog_cluster_scope={scope}")
    result.assert_outcomes(passed=5)


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
    result = ran(pytester, "def test_plain(): pass", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()


def test_an_invalid_history_fails_a_test_that_does_not_look(pytester: pytest.Pytester) -> None:
    result = ran(pytester, SWAPPED)
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
    ran(
        pytester,
        KEPT
        + """
    assert history.verdict.valid == "unknown"
    assert not history.verdict.valid
    assert "no poll returned a record" in repr(history.verdict)
""",
    ).assert_outcomes(passed=1)


def test_a_test_that_looks_judges_itself(pytester: pytest.Pytester) -> None:
    ran(
        pytester,
        SWAPPED
        + """
    assert history.verdict.valid is False
    assert "inconsistent-offsets" in history.verdict.anomalies
""",
    ).assert_outcomes(passed=1)


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
    ran(pytester, SWAPPED, "--junitxml=out.xml")
    properties = {
        str(found.get("name")): str(found.get("value"))
        for found in ElementTree.parse(pytester.path / "out.xml").iter("property")
    }
    assert properties["quorumlog_verdict"] == "invalid"
    assert properties["quorumlog_store"].endswith("test_swapped")


TWICE = """
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    place = {"nodeid": item.nodeid, "location": item.location}
    item.ihook.pytest_runtest_logstart(**place)
    runtestprotocol(item, nextitem=nextitem, log=False)
    item._initrequest()
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(**place)
    return True
"""
BETTER_THEN = """
from pathlib import Path

def test_better_then(history):
    offsets = [0, 1] if Path("tried").exists() else [1, 0]
    for value in range(2):
        with history.send("orders-0", value) as op:
            op.ok(offset=value)
    with history.poll() as op:
        op.ok([("orders-0", at, value) for value, at in enumerate(offsets)])
    Path("tried").touch()
    assert history.verdict.valid is not False
"""


def test_a_second_attempt_has_its_own_verdict_and_files(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(TWICE)  # as plugins do that repeat a failed test
    ran(pytester, BETTER_THEN, "--junitxml=out.xml").assert_outcomes(passed=1)
    properties = [
        (str(found.get("name")), str(found.get("value")))
        for found in ElementTree.parse(pytester.path / "out.xml").iter("property")
    ]
    assert properties == [("quorumlog_verdict", "unknown")]


def test_chaos_run_needs_the_mark(pytester: pytest.Pytester) -> None:
    result = ran(pytester, "def test_it(chaos_run): pass")
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
