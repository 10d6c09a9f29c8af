"""`quorumlog bench`: loads for everyday use, and the six scenarios of 2017."""

import json as json_
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer

from quorumlog.bench.histogram import Histogram, drawn
from quorumlog.bench.load import RETRIES, ConsumeLoad, LatencyLoad, ProduceLoad, ProduceResult
from quorumlog.cli.connect import (
    Access,
    Cluster,
    CommandConfig,
    Login,
    Sasl,
    TlsCa,
    cluster_command,
    resolve,
    run,
)
from quorumlog.cli.options import command_group, parse_duration_ms
from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, fail, one_line_errors, outcome, say, table
from quorumlog.cli.progress import progress_bar
from quorumlog.client import Admin, ErrorCode, KafkaError, NewTopic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorumlog.bench.running import Run

_MESSAGES: Final = 100_000
_SCENARIO_MESSAGES: Final = 10_000
_ACKS: Final[dict[str, Any]] = {"all": "all", "-1": "all", "1": 1, "0": 0}
_NAMES: Final = ("scenarios.json", "scenarios.md", "scenarios.html")
_T = TypeVar("_T")

app: Final = command_group("Measure the throughput and the latency of a cluster of any Kafka.")

Topic = Annotated[
    str, typer.Option("--topic", metavar="TOPIC", help="Topic of the load; created if missing.")
]
Partitions = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Partitions of a topic that is created.")
]
Replication = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Replicas of a topic that is created.")
]
Messages = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="End after N records.", show_default=False)
]
Duration = Annotated[
    str | None, typer.Option(metavar="TIME", help="End after this time, such as 30s or 2m.")
]
Size = Annotated[int, typer.Option(metavar="BYTES", min=8, help="Size of the value of a record.")]
AcksOption = Annotated[
    Literal["all", "-1", "1", "0"],
    typer.Option(help="Wait for the whole ISR (all, -1), for the leader (1), or do not wait (0)."),
]
CompressionOption = Annotated[
    Literal["none", "gzip", "snappy", "lz4", "zstd"], typer.Option(help="Compression of batches.")
]

Linger = Annotated[
    float, typer.Option(metavar="MS", min=0, help="Time that a batch waits for records.")
]
RateMax = Annotated[
    float | None, typer.Option(metavar="N", min=0.001, help="Records a second at most.")
]
InFlight: Final = typer.Option(
    help="Many records in flight, or each after the acknowledgement of the last."
)


@cluster_command(app)
def produce(
    cluster: Cluster,
    topic: Topic = "bench",
    messages: Messages = None,
    duration: Duration = None,
    size: Size = 1024,
    acks: AcksOption = "all",
    partitions: Partitions = None,
    replication: Replication = None,
    compression: CompressionOption = "none",
    linger_ms: Linger = 5,
    rate: RateMax = None,
    mode: Annotated[Literal["pipelined", "one-by-one"], InFlight] = "pipelined",
    idempotence: Annotated[
        bool | None, typer.Option(help="Number the records. Default: with --acks all.")
    ] = None,
    retries: Annotated[
        int, typer.Option(metavar="N", min=0, help="Retries of a batch.", show_default=False)
    ] = RETRIES,
) -> None:
    """Send records as fast as they are acknowledged.

    Sends 100,000 without --messages and --duration, after one record to each partition.

    The latency of a sample of the records is shown, too. It is a closed loop: while the cluster
    does not answer, no record is sent, so a stall counts once for each record in flight
    (coordinated omission). `bench latency` counts it for each record that was due.
    """
    count, seconds = _extent(messages, duration, _MESSAGES)
    _require_acks(acks, idempotence)
    client = cluster.client()
    with one_line_errors(ValueError, status=EXIT_USAGE):
        load = ProduceLoad(
            topic=topic,
            messages=count,
            duration_s=seconds,
            size=size,
            acks=_ACKS[acks],
            mode=mode,
            idempotent=_ACKS[acks] == "all" if idempotence is None else idempotence,
            retries=retries,
            compression=compression,
            linger_ms=linger_ms,
            rate_per_s=rate,
        )
    from quorumlog.bench.produce import ProduceRun

    _require_topic(client, topic, partitions, replication)
    with _progress("producing", count, seconds) as moved:
        result = run(ProduceRun(client, load, moved).run())
    found = {"topic": topic, "acks": acks, "mode": mode, **result.as_json()}
    cluster.outcome(found, *_produced_lines(result))
    if result.failed:
        raise typer.Exit(EXIT_FAILED)


def _produced_lines(result: ProduceResult) -> list[str]:
    rate = result.rate_per_s
    return [
        f"{result.acknowledged:,} of {result.sent:,} records acknowledged, {result.seconds:.2f} s",
        f"{rate:,.0f} records/s, {rate * result.size / 1e6:.2f} MB/s",
        *(f"failed: {count:,} {code}" for code, count in result.failed.items()),
        *(f"failed attempts: {n:,} {code}" for code, n in (result.attempts or {}).items()),
        *_latency_table([("producer", result.latency)]),
    ]


@cluster_command(app)
def consume(
    cluster: Cluster,
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Topic to read.")] = "bench",
    messages: Messages = None,
    duration: Duration = None,
) -> None:
    """Read a topic as fast as it is served.

    Reads from the beginning, without a group. Ends at the present ends of the partitions, or after
    --messages. With --duration it waits for further records until then.
    """
    from quorumlog.bench.consume import run_consume

    seconds = None if duration is None else parse_duration_ms(duration) / 1000
    load = ConsumeLoad(topic=topic, messages=messages, duration_s=seconds)
    client = cluster.client()
    with _progress("consuming", messages, seconds) as moved:
        result = run(run_consume(client, load, moved))
    found = result.as_json()
    cluster.outcome(
        {"topic": topic, **found},
        f"{result.records:,} records, {result.bytes:,} bytes in {result.seconds:.2f} s",
        f"{found['messages_per_s']:,.0f} records/s, {found['mb_per_s']:.2f} MB/s",
    )


@cluster_command(app)
def latency(
    cluster: Cluster,
    topic: Topic = "bench",
    rate: Annotated[float, typer.Option(metavar="N", min=0.001, help="Records a second.")] = 200,
    messages: Messages = None,
    duration: Duration = None,
    size: Size = 1024,
    acks: AcksOption = "all",
    partitions: Partitions = None,
    replication: Replication = None,
    compression: CompressionOption = "none",
) -> None:
    """Measure latencies at a fixed rate.

    To the acknowledgement, and end to end: to a consumer in this process. It is an open loop: a
    record is due at its time, whether or not earlier ones are acknowledged, and its latency counts
    from then. So a stall is in the latency of every record that was due meanwhile: there is no
    coordinated omission. Without --messages and --duration it takes 10 s.
    """
    if messages is not None and duration is not None:
        fail("give --messages or --duration, not both", EXIT_USAGE)
    seconds = 10.0 if duration is None else parse_duration_ms(duration) / 1000
    count = max(1, round(seconds * rate)) if messages is None else messages
    client = cluster.client()
    load = LatencyLoad(
        topic=topic,
        messages=count,
        rate_per_s=rate,
        size=size,
        acks=_ACKS[acks],
        compression=compression,
        warm_up_s=0.5,
    )
    from quorumlog.bench.latency import LatencyRun

    _require_topic(client, topic, partitions, replication)

    with _progress("measuring", count, None) as moved:
        result = run(LatencyRun(client, load, moved).run())
    kinds = [("producer", result.producer), ("end to end", result.end_to_end)]
    lines = [
        f"{result.producer.count:,} of {result.sent:,} records acknowledged, {rate:g} due a second",
        *(f"failed: {count:,} {code}" for code, count in result.failed.items()),
        *_latency_table(kinds),
    ]
    for name, seen in kinds:
        lines += ["", f"{name}:", *drawn(seen)]
    cluster.outcome({"topic": topic, "acks": acks, "rate": rate, **result.as_json()}, *lines)
    if result.failed:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def scenarios(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the results.")],
    only: Annotated[
        str | None, typer.Option(metavar="N,...", help="Scenarios 1 to 6. Default: all.")
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Brokers of any Kafka. Default: four brokers and a controller are started.",
        ),
    ] = None,
    messages: Annotated[
        int, typer.Option(metavar="N", min=100, help="Records of one run; one by one, a fiftieth.")
    ] = _SCENARIO_MESSAGES,
    driver: Annotated[
        Literal["client", "confluent"],
        typer.Option(help="Library that sends: quorumlog.client, or confluent-kafka."),
    ] = "client",
    mode: Annotated[Literal["pipelined", "one-by-one", "both"], InFlight] = "both",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the order of the runs.")] = 0,
    command_config: CommandConfig = None,
    tls_ca: TlsCa = None,
    sasl: Sasl = None,
    login: Login = None,
    json: Annotated[bool, typer.Option("--json", help="Print scenarios.json, too.")] = False,
) -> None:
    """Repeat a benchmark of 2017: six scenarios.

    The benchmark of Kafka 0.10 by vip.com, with its nine claims judged.
    1 to 4: throughput by acks, replicas, min.insync.replicas and partitions. 5: brokers are killed;
    lost and duplicate records are counted. 6: latency. Writes scenarios.json, scenarios.md and
    scenarios.html. Scenario 5 is left out with --bootstrap. Ends with status 1 if a claim about
    safety (C5 to C8) is false; claims about speed are reported only.
    """
    from quorumlog.bench.documents import document, false_safety_claims
    from quorumlog.bench.running import BenchFailed, Plan, run_scenarios
    from quorumlog.bench.scenarios import KILLS, modes_of

    access = Access(command_config=command_config, tls_ca=tls_ca, sasl=sasl, login=login)
    client = _scenarios_client(bootstrap, access)
    numbers = _scenario_numbers(only)
    if client is not None and numbers == [KILLS]:
        fail(f"--only {only}: it kills brokers of its own cluster: no --bootstrap", EXIT_USAGE)
    plan = Plan(only=numbers, messages=messages, modes=modes_of(mode), driver=driver, seed=seed)
    with one_line_errors(OSError):
        out.mkdir(parents=True, exist_ok=True)
    with progress_bar("scenarios", plan.steps) as moved, one_line_errors(BenchFailed):
        found = run_scenarios(plan, client, lambda done, _: moved(done))
    described = document(found)
    with one_line_errors(OSError):
        _write(found, described, out)
    outcome(described, *_verdict(found), f"{out / _NAMES[2]}", json=json)
    if false_safety_claims(found):
        raise typer.Exit(EXIT_FAILED)


def _write(found: "Run", described: dict[str, Any], out: Path) -> None:
    """Write the three files. Raises OSError."""
    from quorumlog.bench.documents import markdown
    from quorumlog.bench.page import page

    texts = (json_.dumps(described, indent=2) + "\n", markdown(found), page(found))
    for name, text in zip(_NAMES, texts, strict=True):
        (out / name).write_text(text, encoding="utf-8")


def _verdict(found: "Run") -> list[str]:
    """Return a line for each claim, and for each part that was left out."""
    from quorumlog.bench.claims import TEXTS
    from quorumlog.bench.documents import WORDS, claims_of, summary

    claims = summary({one: claims_of(found, one) for one in found.plan.only})
    lines = table(
        ("CLAIM", "HERE", ""), [(name, WORDS[holds], TEXTS[name]) for name, holds in claims.items()]
    )
    return [*lines, *(f"not run: {name}: {why}" for name, why in found.left_out.items())]


def _scenarios_client(bootstrap: str | None, access: Access) -> dict[str, Any] | None:
    """Return the arguments of a client; None without a named cluster."""
    if bootstrap is None and access == Access():
        return None
    if bootstrap is None and "bootstrap_servers" not in access.options():
        fail("name the cluster of these options by --bootstrap", EXIT_USAGE)
    return resolve(bootstrap, access=access)


def _scenario_numbers(only: str | None) -> list[int]:
    """Read `1,5`. Ends the command for anything else."""
    from quorumlog.bench.scenarios import SCENARIOS

    if only is None:
        return list(SCENARIOS)
    words = {word.strip() for word in only.split(",")}
    if not words <= {str(one) for one in SCENARIOS}:
        fail(f"--only {only}: write numbers of 1 to 6, such as 1,5", EXIT_USAGE)
    return sorted(int(word) for word in words)


def _require_acks(acks: str, idempotence: bool | None) -> None:
    if idempotence and _ACKS[acks] != "all":
        fail("--idempotence needs --acks all", EXIT_USAGE)


def _extent(
    messages: int | None, duration: str | None, default: int
) -> tuple[int | None, float | None]:
    """Return the number of records or the seconds; both given is a usage error."""
    if messages is not None and duration is not None:
        fail("give --messages or --duration, not both", EXIT_USAGE)
    if duration is not None:
        return None, parse_duration_ms(duration) / 1000
    return default if messages is None else messages, None


def _require_topic(
    client: dict[str, Any], name: str, partitions: int | None, replication: int | None
) -> None:
    """Create the topic if it is missing; print a note if it has other partitions than requested."""

    async def existing() -> int | None:
        async with Admin(**client) as admin:
            try:
                described = await admin.describe_topics([name])
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                await admin.create_topics([NewTopic(name, partitions or -1, replication or -1)])
                return None
            return len(described[name].partitions)

    count = run(existing())
    if count is None:
        say(f"created the topic {name}")
    elif partitions not in {None, count}:
        say(f"the topic {name} exists, with {count} partitions: --partitions has no effect")


@contextmanager
def _progress(
    title: str, count: int | None, seconds: float | None
) -> "Iterator[Callable[[int], object]]":
    """Show a bar that follows the records, or the time of a load without a number of records."""
    from time import monotonic

    began_s = monotonic()
    with progress_bar(title, seconds or count or 0) as moved:
        yield lambda done: moved(min(monotonic() - began_s, seconds) if seconds else done)


def _latency_table(kinds: Sequence[tuple[str, Histogram]]) -> list[str]:
    """Return the lines of a table of latencies, in ms."""
    rows = []
    for name, seen in kinds:
        if seen.count:
            figures = seen.as_json()
            shown = ("avg", "min", "p50", "p95", "p99", "p99.9", "max")
            rows.append((name, *(f"{figures[f'{one}_ms']:.2f}" for one in shown)))
    return table(("LATENCY, MS", "AVG", "MIN", "P50", "P95", "P99", "P99.9", "MAX"), rows)
