"""The `quorumlog` command: each command group has its own file, loaded when it is needed."""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Final

if TYPE_CHECKING:
    from typer import Typer


_JUDGING: Final = frozenset({"verify", "chaos", "simulate"})
_CANNOT_WRITE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class Command:
    """One command: the function of its name in a module. `summary`: its line in the list."""

    def __init__(self, module: str, summary: str, *examples: str) -> None:
        self.module, self.summary, self.examples = module, summary, examples


class Group(Command):
    """A group of commands: the `app` of a module."""


COMMANDS: Final[dict[str, Command]] = {
    "up": Command(
        "cluster_commands",
        "Start a cluster.",
        "quorumlog up",
        "quorumlog up --detach --port 0 --dir /tmp/cluster",
        "quorumlog up --controllers 3 --brokers 2",
        "quorumlog up --config num.partitions=6 --config min.insync.replicas=2",
        "quorumlog up --tls --sasl scram-sha-512 --user admin=@secret --user alice --acls",
    ),
    "client-config": Command(
        "security_options",
        "Print the settings of a client of a secured cluster.",
        "quorumlog client-config --user alice --style confluent",
        "quorumlog client-config --dir quorumlog-data --style java --out client.properties",
    ),
    "save": Command(
        "save_command",
        "Save a cluster in one file, for `up --from`.",
        "quorumlog save seeded.tar.gz",
        "quorumlog up --from seeded.tar.gz --dir copy --port 0",
    ),
    "down": Command(
        "cluster_commands",
        "Stop a cluster cleanly; its data stays.",
        "quorumlog down",
        "quorumlog down --all",
    ),
    "status": Command(
        "cluster_commands",
        "Show nodes, topics and leaders.",
        "quorumlog status",
        "quorumlog status --all",
    ),
    "node": Group(
        "node_commands",
        "Kill, pause, stop or start one node.",
        "quorumlog node kill 2",
        "quorumlog node start 2",
        "quorumlog status",
    ),
    "nemesis": Group(
        "nemesis_commands",
        "Break and mend a cluster that runs with --control.",
        "quorumlog nemesis kill partition-leader --topic orders",
        "quorumlog nemesis isolate 1,2",
        "quorumlog nemesis inflict drop-request all --set api=Fetch",
        "quorumlog nemesis heal",
    ),
    "topics": Group(
        "topic_commands",
        "Create, list, describe, grow and delete topics.",
        "quorumlog topics create orders --partitions 3 --config retention.ms=3600000",
        "quorumlog topics describe orders --json",
        "quorumlog topics grow orders --partitions 6",
        "quorumlog topics list --bootstrap localhost:9092",
    ),
    "reassign": Command(
        "reassign_command",
        "Move the partitions of a topic to other brokers.",
        "quorumlog reassign --topic orders --brokers 2,3,4",
        "quorumlog reassign --topic orders --partition 0 --brokers 1,2 --detach",
        "quorumlog reassign --topic orders --cancel",
    ),
    "log-dirs": Group(
        "log_dirs_commands",
        "Show log directories; move replicas to others.",
        "quorumlog log-dirs describe --broker 1",
        "quorumlog log-dirs move --topic orders --broker 1 --to /disk2",
    ),
    "configs": Group(
        "config_commands",
        "Show and change settings of topics and brokers.",
        "quorumlog configs describe topic orders",
        "quorumlog configs alter topic orders --set retention.ms=3600000",
    ),
    "groups": Group(
        "group_commands",
        "Show groups and their lag, reset offsets, delete groups.",
        "quorumlog groups list",
        "quorumlog groups lag billing",
        "quorumlog groups reset-offsets billing --topic orders --to-earliest",
    ),
    "transactions": Group(
        "transaction_commands",
        "Show transactions, and abort one that hangs.",
        "quorumlog transactions list",
        "quorumlog transactions find-hanging",
        "quorumlog transactions abort --topic orders --partition 0 --start-offset 40",
    ),
    "acls": Group(
        "acl_commands",
        "Show and change ACLs.",
        "quorumlog acls list",
        "quorumlog acls add --principal User:alice --operation read --resource orders",
        "quorumlog acls remove --principal User:alice",
    ),
    "quotas": Group(
        "quota_commands",
        "Show and change quotas of clients.",
        "quorumlog quotas describe",
        "quorumlog quotas alter --entity user=alice --set producer_byte_rate=1048576",
    ),
    "users": Group(
        "user_commands",
        "Show and change users' SCRAM credentials.",
        "quorumlog users describe",
        "quorumlog users set alice",
    ),
    "features": Group(
        "feature_commands",
        "Show and change the cluster's feature levels.",
        "quorumlog features describe",
        "quorumlog features upgrade group.version=1 transaction.version=2",
    ),
    "quorum": Group(
        "quorum_commands",
        "Show the metadata quorum, and change its voters.",
        "quorumlog quorum describe",
        "quorumlog quorum describe --json | jq .leader_id",
    ),
    "doctor": Command(
        "doctor_command",
        "Find out why clients cannot use a cluster.",
        "quorumlog doctor localhost:9092",
        "quorumlog doctor kafka:9092 --command-config client.properties --json",
        "quorumlog doctor kafka:9092 --client-property acks=1 --client-property transactional.id=t",
    ),
    "elect": Command(
        "elect_command",
        "Elect the leaders of partitions.",
        "quorumlog elect --preferred",
        "quorumlog elect --preferred --topic orders",
        "quorumlog elect --unclean --topic orders --partition 3",
    ),
    "dump-log": Command(
        "dump_log_command",
        "Print the files of a log directory.",
        "quorumlog dump-log data/orders-0",
        "quorumlog dump-log data/orders-0/00000000000000000000.log --offset 40 --values",
        "quorumlog dump-log data/__consumer_offsets-3 --json | jq .files[].batches",
        "quorumlog dump-log data --batches --index-sanity",
    ),
    "produce": Command(
        "record_commands",
        "Send lines of standard input as records.",
        "seq 1000 | quorumlog produce orders",
        "quorumlog produce orders --key-separator : --header source=test < lines.txt",
    ),
    "consume": Command(
        "record_commands",
        "Print the records of a topic.",
        "quorumlog consume orders --from beginning --max 10",
        r"quorumlog consume orders --group g --format '%p %o %k %s\n'",
        "quorumlog consume orders --from beginning --json | jq .value",
    ),
    "dump": Command(
        "record_files",
        "Print the records of a topic as JSON lines, for `load`.",
        "quorumlog dump orders > orders.jsonl",
        "quorumlog dump orders --bootstrap kafka.example.org:9092 > orders.jsonl",
    ),
    "load": Command(
        "record_files",
        "Send the records of `dump`.",
        "quorumlog load orders.jsonl",
        "quorumlog dump orders | quorumlog load --topic orders-copy",
    ),
    "bench": Group(
        "bench_commands",
        "Measure throughput and latency of any cluster.",
        "quorumlog bench produce --topic bench --messages 100000",
        "quorumlog bench latency --rate 200 --duration 10s",
        "quorumlog bench scenarios --only 1,5 --out results",
    ),
    "chaos": Group(
        "chaos_commands",
        "Break a cluster and prove what survived.",
        "quorumlog chaos list",
        "quorumlog chaos run --fault kill,pause --duration 60s --out run",
        "quorumlog chaos run --mutant high-watermark --fault pause_kill --partitions 1",
    ),
    "verify": Command(
        "verify",
        "Check the history of a run.",
        "quorumlog verify run",
        "quorumlog verify run/history.jsonl --json",
        "quorumlog verify run --engine spark --master spark://host:7077",
    ),
    "mirror": Group(
        "mirror_commands",
        "Copy topics and groups' offsets to another cluster.",
        "quorumlog mirror --from east:9092 --to west:9092 --topic 'orders.*' --exactly-once",
        "quorumlog mirror --from old:9092 --to new:9092 --topic '.*' --same-name --once",
        "quorumlog mirror status --from east:9092 --to west:9092",
        "quorumlog mirror verify --from east:9092 --to west:9092 --topic 'orders.*'",
    ),
    "simulate": Command(
        "simulate_command",
        "Run the cores, or whole nodes, under seeded faults.",
        "quorumlog simulate nodes --seeds 10 --duration 12s",
        "quorumlog simulate --seeds 100",
        "quorumlog simulate --seed 1434 --duration 17s",
        "quorumlog simulate --mutant second_vote --shrink smallest.json",
    ),
}
_WIDTH_MAX: Final = 120  # width of a help text, in characters: longer lines are hard to read
_FIRST_STEPS: Final = (
    "quorumlog up --detach",
    "quorumlog topics create orders --partitions 3 --replication 3",
    "seq 1000 | quorumlog produce orders",
    "quorumlog consume orders --from beginning --max 1000",
    "quorumlog down",
)


def _shown(examples: Sequence[str]) -> str | None:
    """Return the end of a help text: the examples, in lines that are not wrapped."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in examples)]) if examples else None


def build_app(arguments: Sequence[str]) -> "Typer":
    """Return the application, with only the command loaded that `arguments` begin with.

    The other commands have only names and summaries, for the list of commands.
    """
    import typer

    def root(
        version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    ) -> None:
        """Declare the options of `quorumlog` itself; `main` acts on them."""
        del version

    app = typer.Typer(
        name="quorumlog",
        help="A Kafka-compatible cluster to break on purpose, with proof of what survived.",
        epilog=_shown(_FIRST_STEPS),
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDTH_MAX},
        subcommand_metavar="COMMAND",
    )
    app.callback()(root)
    asked = arguments[0] if arguments else ""
    for name, command in COMMANDS.items():
        if name == asked:
            _load(app, name, command)
        else:
            app.command(name=name, short_help=command.summary)(_not_loaded)
    return app


def _load(app: "Typer", name: str, command: Command) -> None:
    from quorumlog.cli.options import PlainCommand

    module = _imported(command.module)
    found = module.app if isinstance(command, Group) else getattr(module, name.replace("-", "_"))
    epilog = _shown(command.examples)
    if isinstance(command, Group):
        for one in found.registered_commands:
            one.cls = PlainCommand
        app.add_typer(found, name=name, short_help=command.summary, epilog=epilog)
    else:
        kind = getattr(module, "COMMAND", PlainCommand)  # the command's own class, if any
        app.command(name=name, cls=kind, short_help=command.summary, epilog=epilog)(found)


def _imported(module: str) -> ModuleType:
    """Import a module of commands; the code of its dataclasses is kept, as a node's is."""
    from importlib import import_module

    from quorumlog.node.kept_code import kept_code

    name = f"{__package__}.{module}"
    if name in sys.modules:
        return sys.modules[name]
    with kept_code(str(Path(__file__).with_name(f"{module}.py"))):
        return import_module(name)


def _not_loaded() -> None:
    """Do nothing: the placeholder of a command that is not loaded."""


def main() -> None:
    """Run the command line. A usage error ends with status 64, as `sysexits.h` has it."""
    arguments = sys.argv[1:]
    _open_what_is_closed()
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while loading: no traceback of an import
    is_version = arguments[:1] == ["--version"]
    completed = _completed()
    if arguments[:1] == ["up"] and not completed and "--help" not in arguments:
        from quorumlog.cluster import forked

        forked.prepare()  # before the command is loaded: both cores import
    app = None if is_version else build_app(completed or arguments)
    if interrupt == signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        status = _print_version() if app is None else _run(app, arguments or ["--help"])
        sys.stdout.flush()
    except BrokenPipeError:  # `quorumlog status | true`: the reader has closed the pipe
        _drop_stdout()
        sys.exit(_status_without_output(arguments))
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        _drop_stdout()
        sys.stderr.write(f"quorumlog: cannot write the output: {error.strerror}\n")
        sys.exit(_status_without_output(arguments))
    sys.exit(status)


def _print_version() -> int:
    from quorumlog import __version__

    sys.stdout.write(f"{__version__}\n")
    return 0


def _run(app: "Typer", arguments: list[str]) -> int:
    from typer.exceptions import Abort, TyperException

    from quorumlog.cli.output import EXIT_INTERRUPTED, EXIT_USAGE, document_error, expect, say

    expect(arguments)
    try:
        status: int | None = app(args=arguments, standalone_mode=False)
    except TyperException as error:
        # Pydantic checks choices; its prefix of the message is of no use to a person.
        error.message = error.message.removeprefix("Value error, ") + _hint(arguments)
        show = getattr(error, "show", None)  # usage errors print the usage themselves
        if show is not None:
            show()
        else:
            say(f"quorumlog: {error}")
        document_error(error.format_message())
        return EXIT_USAGE
    except (Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    return status or 0


def _hint(arguments: Sequence[str]) -> str:
    """Return a hint for a command typed without its group, as `quorumlog lag`; or ""."""
    from importlib import import_module

    name = arguments[0]
    if name.startswith("-") or name in COMMANDS:
        return ""
    found = []
    for group, command in COMMANDS.items():
        if isinstance(command, Group):
            registered = import_module(f"quorumlog.cli.{command.module}").app.registered_commands
            if name in {one.name or one.callback.__name__ for one in registered}:
                found.append(f"quorumlog {group} {name}")
    return f" Did you mean: {', '.join(found)}?" if found else ""


def _completed() -> list[str]:
    """Return the words of the command line to complete, if a shell requests completion."""
    words = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    return words.split()[1:] if "_QUORUMLOG_COMPLETE" in os.environ else []


def _open_what_is_closed() -> None:
    """Open /dev/null as stdout or stderr if the process was started without it (`>&-`)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - it is open until the process ends


def _status_without_output(arguments: Sequence[str]) -> int:
    """Return the status of a command whose output could not be written.

    It is 2 (unknown) where 1 would say that the verdict is invalid.
    """
    return 2 if {*arguments[:1]} & _JUDGING else 1


def _drop_stdout() -> None:
    """Keep the interpreter from flushing unwritable output at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
