"""The check of a history on Spark: surveyed, exploded, split by key, checked.

All steps run the pure functions of `checking.parts` and `chaos.checkers` on Arrow tables in Python:
there is no second implementation that could disagree with the local one. Tasks read row groups of
the file themselves; the JVM moves only few large blocks of bytes between them, without a query plan
and without rows. One task checks a key, except a large one: tasks examine ranges of it, and one
task checks the whole key only if they do not prove it clean.
Decisions 54 (engines) and 55 (hot keys).
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from quorumlog.chaos.checkers.checker import Checker, Facts, Ranges, facts_of
from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.fault_phase import fault_phase
from quorumlog.chaos.checkers.registry import DEFAULT_MODEL, find_checker, judges_of
from quorumlog.chaos.checkers.verdict import Partial, Verdict, joined
from quorumlog.chaos.checking.parts.plan import Plan, plan_of
from quorumlog.chaos.checking.parts.row_groups import find_row_groups
from quorumlog.chaos.checking.parts.survey import Look, Survey, look, survey_of
from quorumlog.chaos.checking.parts.table_cuts import (
    Cuts,
    cut_by_key,
    cut_by_process,
    pack,
    unpack,
    unshared,
)
from quorumlog.chaos.checking.spark.context import cores, spark_context
from quorumlog.chaos.checking.spark.executors import executors_expected
from quorumlog.chaos.checking.spark.inputs import Input, files, remote, remote_metadata, table_of
from quorumlog.chaos.history.files import HistorySource
from quorumlog.chaos.history.model import HistoryError
from quorumlog.chaos.history.schema import OPERATIONS

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

_SHORT_ROWS: Final = 5_000_000  # below, a JVM that starts fast beats one that runs fast
_MICRO_PER_PART: Final = 1_000_000
_MICRO_OF_A_TASK: Final = 50_000  # a smaller part is checked faster than its task starts
_PARTS_MAX: Final = 512
Numbered = tuple[int, bytes]  # a part, and a block of it


def check_on_spark(
    source: HistorySource,
    *,
    model: str = DEFAULT_MODEL,
    master: str | None = None,
    conf: Mapping[str, str] = MappingProxyType({}),
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Check a history; the verdict equals that of `checkers.check_history`.

    The tasks read a Parquet file in place: with a remote master the executors must have access to
    it. A path with a scheme (hdfs://, s3a://) is a Parquet file that Spark opens. `conf`:
    context.py. Raises HistoryError and SparkUnavailable.
    """
    groups, table, rows = None, None, _SHORT_ROWS
    find_checker(model)  # before Spark starts
    if not source.is_remote:
        groups = find_row_groups(source)
        table = None if groups is not None else source.table  # JSON lines, format 1
        rows = groups.rows if groups is not None else table.num_rows if table is not None else 0
    progress("starting Spark")
    with (
        spark_context(master, conf=conf, is_short=rows < _SHORT_ROWS) as context,
        executors_expected(context),
    ):
        if groups is not None:
            given, metadata = files(context, groups), groups.metadata
        elif table is not None:
            given, metadata = table_of(context, table), table.schema.metadata or {}
        else:
            path = str(source.path)
            given, metadata = remote(context, path), remote_metadata(context, path)
        facts = facts_of(metadata)
        judges = judges_of(model, facts)
        return joined(
            [check_input(context, given, one, facts, progress=progress) for one in judges]
        )


def check_input(
    context: "SparkContext",
    given: Input,
    checker: Checker,
    facts: Facts,
    *,
    parts: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Check the operations of `given`, split into `parts`. Raises HistoryError."""
    progress("reading the history")
    survey = _survey(given, checker)
    progress("checking")
    most_tasks = 4 * cores(context)
    plan = plan_of(
        survey.extents,
        given.micro,
        checker,
        parts_for=lambda micro: (
            parts
            or min(
                _PARTS_MAX,
                max(micro // _MICRO_PER_PART, min(most_tasks, 1 + micro // _MICRO_OF_A_TASK)),
            )
        ),
    )
    partials = _check(given, checker, facts, survey, plan)
    bands = fault_bands(survey.nemesis)
    phase = fault_phase(survey.nemesis, bands, survey.acks)
    return checker.conclude(partials, bands, facts).with_fault_phase(phase)


def _survey(given: Input, checker: Checker) -> Survey:
    tables = given.tables

    def look_at(rows: Iterable[Any]) -> Iterator[bytes]:
        for part in tables(rows):
            yield pickle.dumps(look(part, checker))

    found = _collect(given.rows.mapPartitions(look_at))
    looks: list[Look] = [pickle.loads(one) for one in found]  # noqa: S301 - of our own tasks
    looks.sort(key=lambda one: -1 if one.facts is None else one.facts.first_index)
    return survey_of(looks, checker)


def _check(
    given: Input, checker: Checker, facts: Facts, survey: Survey, plan: Plan
) -> list[Partial]:
    blocks = _by_key(given, checker, survey, plan).partitionBy(plan.parts_in_all, int)
    ranges, first_range = checker.ranges, plan.parts

    def check(blocks: Iterable[Numbered]) -> Iterator[bytes]:
        for part, entries in _whole(blocks, checker.entries):
            if ranges is not None and part >= first_range:
                yield pickle.dumps((part, ranges.examine(entries, facts)))
            else:
                yield pickle.dumps((part, checker.check(entries, facts)))

    found = _collect(blocks.mapPartitions(check))
    told: dict[int, Any] = dict(pickle.loads(one) for one in found)  # noqa: S301 - of our own tasks
    # Of an empty table, too: the figures exist even if the history is empty.
    partials = [checker.check(checker.explode(OPERATIONS.empty_table()), facts)]
    partials += [told[part] for part in sorted(told) if part < plan.parts]
    if ranges is None:
        return partials
    doubted = []
    for cuts in plan.cuts.values():
        # A range that is empty has no task.
        evidence = [told[part] for part in cuts.parts if part in told]
        if (proved := ranges.stitch(evidence, facts)) is not None:
            partials.append(proved)
        else:
            doubted.append(cuts)
    if doubted:
        partials += _check_whole(blocks, doubted, checker, ranges, facts)
    return partials


def _check_whole(
    blocks: "RDD[Numbered]", doubted: Sequence[Cuts], checker: Checker, ranges: Ranges, facts: Facts
) -> list[Partial]:
    """Check the keys that ranges did not prove clean: the blocks of each go to one task."""
    key_of = {part: key for key, cuts in enumerate(doubted) for part in cuts.parts}
    firsts = {cuts.first_part for cuts in doubted}

    def moved(blocks: Iterable[Numbered]) -> Iterator[Numbered]:
        for part, entries in _whole((one for one in blocks if one[0] in key_of), checker.entries):
            own = entries if part in firsts else unshared(entries, ranges)
            yield from ((key_of[part], block) for block in pack(own))

    def check(blocks: Iterable[Numbered]) -> Iterator[bytes]:
        for _, entries in _whole(blocks, checker.entries):
            yield pickle.dumps(checker.check(entries, facts))

    keys = blocks.mapPartitions(moved).partitionBy(len(doubted), int)
    found = _collect(keys.mapPartitions(check))
    return [pickle.loads(one) for one in found]  # noqa: S301 - of our own tasks


def _by_key(given: Input, checker: Checker, survey: Survey, plan: Plan) -> "RDD[Numbered]":
    """Return all entries, in blocks of the parts to which they belong."""
    tables, parts = given.tables, plan.parts

    def explode(part: pa.Table) -> pa.Table:
        return checker.runs.explode(part, survey.context) if checker.runs else checker.explode(part)

    def cut(entries: pa.Table) -> Iterator[Numbered]:
        ranges = checker.ranges
        return _blocks(cut_by_key(entries, parts, plan.places, cuts=plan.cuts, ranges=ranges))

    def by_process(rows: Iterable[Any]) -> Iterator[Numbered]:
        for part in tables(rows):
            yield from _blocks(cut_by_process(part, parts))

    def by_key(runs: Iterable[pa.Table]) -> Iterator[Numbered]:
        for part in runs:
            yield from cut(explode(part))

    if checker.runs is None:
        moved = given.rows.mapPartitions(by_process).partitionBy(parts, int)
        return moved.mapPartitions(
            lambda blocks: by_key(table.sort_by("index") for _, table in _whole(blocks, OPERATIONS))
        )
    runs = checker.runs

    def with_lives(task: int, rows: Iterable[Any]) -> Iterator[Numbered]:
        """Entries that span runs come from the first task: a union needs more Python workers."""
        if task == 0:
            yield from cut(runs.explode_context(survey.context))
        yield from by_key(tables(rows))

    return given.rows.mapPartitionsWithIndex(with_lives)


def _blocks(parts: Iterable[tuple[int, pa.Table]]) -> Iterator[Numbered]:
    for part, table in parts:
        for block in pack(table):
            yield part, block


def _whole(blocks: Iterable[Numbered], schema: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
    """Yield the part of a task, and the table of its blocks, if it has blocks."""
    held = [*blocks]
    if held:
        yield held[0][0], unpack((block for _, block in held), schema)


def _collect(rows: "RDD[Any]") -> list[Any]:
    """Run a job. Raises the HistoryError of a task."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return list(rows.collect())
    except (PySparkException, Py4JJavaError) as error:
        if "HistoryError: " in str(error):
            said = str(error).rpartition("HistoryError: ")[2].splitlines()[0]
            raise HistoryError(said) from error
        raise
