"""The plugin: options, the mark `chaos`, fixtures. It is loaded whenever pytest starts.

It imports only pytest and small modules beside it; fixtures import the rest when a test uses them.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from quorumlog.testing.marks import read_mark
from quorumlog.testing.options import OPTIONS, Scope, add_options, read_options
from quorumlog.testing.trial import CLUSTERS, PROPERTIES, TRIAL, Trial, forget_attempt

if TYPE_CHECKING:
    from quorumlog.chaos.back_ends.local_processes import LocalProcesses
    from quorumlog.chaos.control.manual_nemesis import ManualNemesis
    from quorumlog.client.settings import ProducerOptions
    from quorumlog.client.sync import SyncAdmin, SyncConsumer, SyncProducer
    from quorumlog.cluster import LocalCluster
    from quorumlog.testing.chaos_run import ChaosRun
    from quorumlog.testing.clusters import MakeCluster
    from quorumlog.testing.control import Control
    from quorumlog.testing.history import History
    from quorumlog.testing.topics import FreshTopic, MakeTopic

_CHAOS_RUN: Final = "chaos_run"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the plugin's options."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, and register the mark."""
    config.stash[OPTIONS] = read_options(config)
    config.addinivalue_line(
        "markers",
        "chaos(workload, faults, duration, seed, driver, options, simulated, nodes, controllers, "
        "brokers, partitions, config, mutant, security): carry out a chaos run before the body of "
        "the test, which fails if the verdict is not valid",
    )
    options = config.stash[OPTIONS]
    if options.cluster_scope != "function":
        from quorumlog.testing.shared import SHARED, SharedCluster

        shared = config.stash[SHARED] = SharedCluster(resets=options.cluster_reset)
        config.pluginmanager.register(shared)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show the given or drawn seed."""
    seed = config.stash[OPTIONS].seed
    return None if seed is None else f"quorumlog: seed {seed}"


def _names(marker: pytest.Mark) -> tuple[str, ...]:
    """Return the names of the arguments of a mark `parametrize`."""
    names = marker.args[0] if marker.args else marker.kwargs.get("argnames", ())
    return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else (*names,)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give parameters of `quorumlog_cluster_options` that fixture's scope; check marks under xdist.

    In a worker of xdist, an invalid mark becomes an error of the collection: a usage error would
    end the worker, and xdist would report its loss instead of the reason.
    """
    for marker in metafunc.definition.iter_markers("parametrize"):
        if "quorumlog_cluster_options" in _names(marker):
            keywords = cast(dict[str, Any], marker.kwargs)
            keywords.setdefault("scope", metafunc.config.stash[OPTIONS].cluster_scope)
    wrong = ""
    if hasattr(metafunc.config, "workerinput"):  # of pytest-xdist
        try:
            read_mark(metafunc.definition, with_seed=False)  # it has no parameters yet
        except pytest.UsageError as error:
            wrong = str(error)
    if wrong:
        pytest.fail(wrong, pytrace=False)


@pytest.hookimpl(trylast=True)  # deselected tests are not checked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check every mark before a test runs, and give each marked test its run.

    A mistake that depends on the seed, such as a duration too short for a fault, is an error of
    that test.
    """
    for item in items:
        is_marked = read_mark(item, with_seed=False) is not None
        if is_marked and isinstance(item, pytest.Function) and _CHAOS_RUN not in item.fixturenames:
            item.fixturenames.append(_CHAOS_RUN)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget an earlier attempt at the same test, as of pytest-rerunfailures."""
    forget_attempt(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test whose verdict is not valid, unless the test read the verdict itself."""
    trial = item.stash.get(TRIAL, None)
    if trial is not None:
        trial.began_s = time.monotonic()
    yield
    for complaint in trial.complaints() if trial is not None else ():
        pytest.fail(complaint, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the findings, their directory and the command to repeat them below a failure."""
    del call
    report = yield
    trial = item.stash.get(TRIAL, None)
    if report.failed:
        last_lines = list(_last_lines(item))
        if last_lines:
            report.sections.append(("the ends of the nodes' logs", "\n".join(last_lines)))
    if trial is None:
        return report
    if report.failed:
        trial.has_failed = True
        report.sections.append(("quorumlog", "\n".join(trial.lines())))
    others = [one for one in item.user_properties if one[0] not in PROPERTIES]  # not of us
    item.user_properties[:] = [*others, *trial.properties()]  # an earlier attempt had others
    report.user_properties = list(item.user_properties)
    return report


def _last_lines(item: pytest.Item) -> Iterator[str]:
    """Yield the last lines of the nodes' logs in the clusters of a test."""
    if {"quorumlog_cluster", "quorumlog_make_cluster"} & {*getattr(item, "fixturenames", ())}:
        from quorumlog.testing.clusters import last_lines

        one = getattr(item, "funcargs", {}).get("quorumlog_cluster")
        for cluster in [*filter(None, [one]), *item.stash.get(CLUSTERS, [])]:
            yield from last_lines(cluster)


@pytest.fixture
def quorumlog_trial(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trial]:
    """Yield the seed and the directory of the test, for its other fixtures."""
    trial = Trial(request.node, tmp_path_factory.getbasetemp())
    trial.make_room()
    request.node.stash[TRIAL] = trial
    yield trial
    trial.finish()


def _require_checks() -> None:
    """Fail the test with one line if an extra for checking histories is missing."""
    from quorumlog.extras import why_no_checks

    if reason := why_no_checks():
        pytest.fail(reason, pytrace=False)


@pytest.fixture
def chaos_run(request: pytest.FixtureRequest, quorumlog_trial: Trial) -> "ChaosRun":
    """Return the finished run of the test's mark `chaos`, with its verdict."""
    _require_checks()
    from quorumlog.testing.chaos_run import carry_out

    mark, wrong = None, ""
    try:
        mark = read_mark(request.node)
    except pytest.UsageError as error:
        wrong = str(error)
    if wrong:
        pytest.fail(wrong, pytrace=False)
    if mark is None:
        raise pytest.UsageError(f"{request.node.nodeid}: chaos_run needs @pytest.mark.chaos(...)")
    return carry_out(mark, quorumlog_trial)


@pytest.fixture(scope="session")
def quorumlog_cluster_options() -> dict[str, Any]:
    """Return arguments of LocalCluster: nodes, config, security; a conftest.py overrides it."""
    return {}


def _cluster_scope(*, fixture_name: str, config: pytest.Config) -> Scope:
    del fixture_name
    return config.stash[OPTIONS].cluster_scope


@pytest.fixture(scope=_cluster_scope)  # type: ignore[arg-type]  # pytest passes keywords
def quorumlog_back_end(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    quorumlog_cluster_options: dict[str, Any],
) -> Iterator["LocalProcesses"]:
    """Yield a cluster that can be broken; behind forwarders if a test with a nemesis uses it."""
    from quorumlog.testing.clusters import cluster_for_many, cluster_for_one

    if request.scope == "function":
        trial: Trial = request.getfixturevalue("quorumlog_trial")
        with_links = "nemesis" in request.fixturenames
        yield from cluster_for_one(trial, quorumlog_cluster_options, with_links=with_links)
        return
    with_links = any(
        "nemesis" in getattr(item, "fixturenames", ()) for item in request.session.items
    )
    yield from cluster_for_many(
        request, tmp_path_factory, quorumlog_cluster_options, with_links=with_links
    )


@pytest.fixture(scope=_cluster_scope)  # type: ignore[arg-type]  # as above
def quorumlog_cluster(quorumlog_back_end: "LocalProcesses") -> "LocalCluster":
    """Return a cluster of three nodes on free ports; its scope is quorumlog_cluster_scope."""
    return quorumlog_back_end.cluster


@pytest.fixture
def topic_options() -> dict[str, Any]:
    """Return arguments of NewTopic: num_partitions, configs; a test module overrides it."""
    return {}


@pytest.fixture
def topic(
    request: pytest.FixtureRequest, quorumlog_cluster: "LocalCluster", topic_options: dict[str, Any]
) -> "FreshTopic":
    """Return the name of a new topic; it begins with the name of the test."""
    from quorumlog.testing.topics import create_topic, fresh_name

    _clean_before_topics(request)
    return create_topic(quorumlog_cluster, fresh_name(request.node.name), topic_options)


@pytest.fixture
def make_topic(request: pytest.FixtureRequest, quorumlog_cluster: "LocalCluster") -> "MakeTopic":
    """Return a factory of topics: `make_topic("orders", partitions=3)`."""
    from quorumlog.testing.topics import MakeTopic

    _clean_before_topics(request)
    return MakeTopic(quorumlog_cluster, request.node.name)


def _clean_before_topics(request: pytest.FixtureRequest) -> None:
    """Clean a shared cluster before topics are created, if the test requires that."""
    if "clean_cluster" in request.fixturenames:
        request.getfixturevalue("clean_cluster")


@pytest.fixture
def clean_cluster(quorumlog_cluster: "LocalCluster") -> "LocalCluster":
    """Return the cluster without the topics, groups and open transactions of earlier tests."""
    from quorumlog.cluster.resets import reset

    reset(quorumlog_cluster)
    return quorumlog_cluster


@pytest.fixture
def quorumlog_make_cluster(
    request: pytest.FixtureRequest, quorumlog_trial: Trial
) -> Iterator["MakeCluster"]:
    """Yield a factory of further clusters, which end with the test: `...(nodes=1)`."""
    from quorumlog.testing.clusters import MakeCluster

    with ExitStack() as stack:
        yield MakeCluster(quorumlog_trial, request.node, stack)


@pytest.fixture
def quorumlog_admin(quorumlog_cluster: "LocalCluster") -> Iterator["SyncAdmin"]:
    """Yield an administrator of the cluster; of a secured one, its first super user or user."""
    from quorumlog.client.sync import SyncAdmin

    with SyncAdmin(**quorumlog_cluster.client_config()) as admin:
        yield admin


@pytest.fixture
def quorumlog_producer(quorumlog_cluster: "LocalCluster") -> Iterator["SyncProducer"]:
    """Yield a producer; a record that is unacknowledged after 30 s fails."""
    from quorumlog.client.sync import SyncProducer

    options: ProducerOptions = {"request_timeout_ms": 10_000, "delivery_timeout_ms": 30_000}
    with SyncProducer(**quorumlog_cluster.client_config(), **options) as producer:
        yield producer


@pytest.fixture
def quorumlog_consumer(
    request: pytest.FixtureRequest, quorumlog_cluster: "LocalCluster"
) -> Iterator["SyncConsumer"]:
    """Yield a consumer that begins at the earliest record, in a group of its own."""
    from quorumlog.client.sync import SyncConsumer
    from quorumlog.testing.topics import fresh_name

    with SyncConsumer(
        **quorumlog_cluster.client_config(),
        group_id=fresh_name(request.node.name),
        auto_offset_reset="earliest",
    ) as consumer:
        yield consumer


@pytest.fixture
def nemesis(
    request: pytest.FixtureRequest, quorumlog_back_end: "LocalProcesses", quorumlog_trial: Trial
) -> Iterator["ManualNemesis"]:
    """Yield the nemesis of the cluster; all faults are healed at the end of the test."""
    from quorumlog.chaos.control.manual_nemesis import ManualNemesis
    from quorumlog.testing.shared import SHARED
    from quorumlog.testing.topics import topics_of

    is_shared = request.config.stash[OPTIONS].cluster_scope != "function"
    topic: str | None = None
    if "topic" in request.fixturenames:
        topic = request.getfixturevalue("topic")
    nemesis = ManualNemesis(
        quorumlog_back_end,
        topics=lambda: topics_of(quorumlog_back_end.cluster),
        topic=topic,
        seed=quorumlog_trial.seed(),
        record=quorumlog_trial.note,
        outlives=is_shared,
    )
    quorumlog_trial.judges.append(nemesis.complaint)
    try:
        with nemesis:
            yield nemesis
    except BaseException:
        if is_shared:
            request.config.stash[SHARED].note_unhealed(nemesis)
        raise


@pytest.fixture
def quorumlog_control(
    quorumlog_cluster: "LocalCluster", nemesis: "ManualNemesis", quorumlog_trial: Trial
) -> Iterator["Control"]:
    """Yield the url and token of a control server, for clients that are no Python programs.

    Its verbs are those of the test's nemesis.
    """
    from quorumlog.testing.control import served

    with served(quorumlog_cluster, nemesis, quorumlog_trial) as control:
        yield control


@pytest.fixture
def history(request: pytest.FixtureRequest, quorumlog_trial: Trial) -> Iterator["History"]:
    """Yield the history that records the operations of the test's clients, and judges them."""
    if read_mark(request.node, with_seed=False) is not None:
        pytest.fail(
            "@pytest.mark.chaos has its own history: use the fixture `chaos_run`"
            " (chaos_run.history, chaos_run.verdict) instead of `history`",
            pytrace=False,
        )
    _require_checks()
    from quorumlog.testing.history import History

    uses_cluster = "quorumlog_cluster" in request.fixturenames
    cluster = request.getfixturevalue("quorumlog_cluster") if uses_cluster else None
    nemesis = request.getfixturevalue("nemesis") if "nemesis" in request.fixturenames else None
    with History(quorumlog_trial, cluster=cluster, nemesis=nemesis) as history:
        yield history
