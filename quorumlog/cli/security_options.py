"""The options of `up` that protect a cluster, and `quorumlog client-config`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quorumlog.cli.options import DEFAULT_DIR, Dir
from quorumlog.cli.output import EXIT_USAGE, cluster_errors, data, fail, say, text_of

if TYPE_CHECKING:
    from quorumlog.cluster import LocalCluster
    from quorumlog.cluster.security import SecurityOptions

_STYLES: Final = "confluent, aiokafka, kafka-python, java, kafkajs, franz-go or quorumlog"
_PRINTED: Final = "confluent"
_WORD: Final = re.compile(r"(?P<option>--[a-z-]+)=(?P<value>.*)", re.DOTALL)
_NAME_AND_SECRET: Final = re.compile(r"(?P<name>[^=:]+[=:])(?!@).+", re.DOTALL)

Tls = Annotated[
    bool,
    typer.Option("--tls", help="TLS on all listeners, with a CA and certificates of the cluster."),
]
Sasl = Annotated[
    str | None,
    typer.Option(
        metavar="MECHANISM",
        help="Clients authenticate: plain, scram-sha-256, scram-sha-512 or oauthbearer.",
    ),
]
User = Annotated[
    list[str] | None,
    typer.Option(
        "--user",
        metavar="NAME[=PASSWORD]",
        help="A user of --sasl. NAME=@FILE reads the password from a file, which `ps` does not "
        "show; NAME alone gets a random one, or a certificate without --sasl. Repeatable.",
    ),
]
Users = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A file with a line NAME=PASSWORD for each user."),
]
Acls = Annotated[
    bool, typer.Option("--acls", help="Refuse requests that no ACL allows: `quorumlog acls`.")
]
SuperUser = Annotated[
    list[str] | None,
    typer.Option(
        "--super-user",
        metavar="NAME",
        help="A user that needs no ACL. Repeatable. Default with --acls: admin.",
    ),
]


def security_of(
    tls: bool,
    sasl: str | None,
    user: Sequence[str] | None,
    users: Path | None,
    acls: bool,
    super_user: Sequence[str] | None,
) -> "SecurityOptions":
    """Return the arguments of LocalCluster. Ends with a usage error for a wrong user."""
    named: dict[str, str | None] = {}
    lines = [] if users is None else _lines(users, "--users")
    for text in [*(line for line in lines if line and not line.startswith("#")), *(user or ())]:
        name, equals, password = text.partition("=")
        if name in named:
            fail(f"--user {name}: it is given twice", EXIT_USAGE)
        named[name] = _password(name, password) if equals else None
    return {
        "tls": tls,
        "sasl": sasl,
        "users": named,
        "acls": acls,
        "super_users": tuple(super_user or ()),
    }


def _password(name: str, text: str) -> str:
    """Return the password; of @FILE, the first line of the file."""
    if not text.startswith("@"):
        return text
    return next(iter(_lines(Path(text[1:]), f"--user {name}")), "")


def _lines(file: Path, option: str) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{option}: {text_of(error)}", EXIT_USAGE)


def describe(cluster: "LocalCluster") -> dict[str, Any] | None:
    """Return the protection of a cluster for `up --json`, without a secret; None: it has none."""
    security = cluster.spec.security
    if security is None:
        return None
    from quorumlog.cluster.security import ca_file

    return {
        "ca": str(ca_file(cluster.directory)) if security.tls else None,
        "protocol": security.protocol,
        "mechanism": security.mechanism,
        "acls": security.acls,
        "super_users": list(security.super_users),
    }


def print_security(cluster: "LocalCluster") -> None:
    """Print the protection, and the settings of a client without its password."""
    described = describe(cluster)
    if described is None:
        return
    from dataclasses import replace

    from quorumlog.cluster import client_configs
    from quorumlog.cluster.security import HIDDEN

    words = [described["protocol"], described["mechanism"], "ACLs" if described["acls"] else None]
    data(f"  security {'  '.join(filter(None, words))}")
    if described["super_users"]:
        data(f"           super users: {', '.join(described['super_users'])}")
        for line in _unusable(cluster):
            data(f"           {line}")
    way = client_configs.access(cluster.directory, cluster.spec, None)
    if way.password is not None:
        way = replace(way, password=HIDDEN)
    person = f", as {way.user}" if way.user else ""
    data(f"  settings of a client of {_PRINTED}{person}:")
    for line in client_configs.config_text(way, _PRINTED).splitlines():
        data(f"    {line}")
    user = f" --user {way.user}" if way.user else ""
    data(f"  in full: quorumlog client-config --dir {cluster.directory}{user} --style {_PRINTED}")
    data(f"  or --style {_STYLES.replace(f'{_PRINTED}, ', '')}")


def _unusable(cluster: "LocalCluster") -> list[str]:
    """Return a line for super users that no client can authenticate as."""
    from quorumlog.cluster.security import user_names

    security = cluster.spec.security
    if security is None:
        return []
    if security.mechanism is None and not security.has_certificates:
        return ["every client is User:ANONYMOUS: --sasl, or --tls with --user, has others"]
    users = user_names(cluster.directory, cluster.spec)
    names = [one.removeprefix("User:") for one in security.super_users]
    password = "" if security.has_certificates else "=PASSWORD"
    return [
        f"{name} has no recorded login: `quorumlog up --user {name}{password}` records it"
        for name in names
        if name not in users
    ]


def client_config(
    directory: Dir = DEFAULT_DIR,
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A user. Default: the first super user, else the first."),
    ] = None,
    style: Annotated[str, typer.Option(metavar="LIBRARY", help=f"{_STYLES}.")] = "java",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file to write, which its owner alone can read."),
    ] = None,
) -> None:
    """Print the settings of a client, WITH the user's password, ready to be pasted.

    Those of Java are properties: for --command-config of Apache Kafka's tools and of quorumlog's
    commands.
    """
    from quorumlog.cluster import LocalCluster, client_configs
    from quorumlog.cluster.files import write_private

    with cluster_errors():
        cluster = LocalCluster.open(directory)
        way = client_configs.access(cluster.directory, cluster.spec, user)
        text = client_configs.config_text(way, style)
        if out is None:
            data(text)
            return
        write_private(out, text + "\n")
        say(f"wrote {out}")


def without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command as they may be recorded: passwords are hidden in them."""
    shown, option = list[str](), ""
    for word in words:
        found = _WORD.fullmatch(word)
        name, value = (found["option"], found["value"]) if found else (option, word)
        start = word[: len(word) - len(value)]
        shown.append(start + _hidden(name, value))
        option = word if word.startswith("--") else ""
    return tuple(shown)


def _hidden(option: str, value: str) -> str:
    from quorumlog.cluster.security import HIDDEN, may_be_secret

    pair = _NAME_AND_SECRET.fullmatch(value)
    if pair is None or option not in {"--user", "--config"}:
        return value
    is_secret = option == "--user" or may_be_secret({value.partition("=")[0]: ""})
    return pair["name"] + HIDDEN if is_secret else value
