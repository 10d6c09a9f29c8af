"""`quorumlog users`: describe, set and delete credentials of SCRAM."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from quorumlog.cli.connect import Cluster, cluster_command
from quorumlog.cli.options import command_group
from quorumlog.cli.output import EXIT_USAGE, cluster_errors, fail, say, table, text_of
from quorumlog.client import NewScramCredential

app = command_group("Show and change users' SCRAM credentials, which listeners with SCRAM check.")

User = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
Mechanism = Annotated[
    Literal["SCRAM-SHA-256", "SCRAM-SHA-512"] | None,
    typer.Option(
        help="Mechanism of the credential. Default: of the cluster in DIR, else SCRAM-SHA-256."
    ),
]


@cluster_command(app)
def describe(
    cluster: Cluster,
    users: Annotated[
        list[str] | None, typer.Argument(metavar="USER", help="Only these users.")
    ] = None,
) -> None:
    """Show the credentials of users.

    A password cannot be shown.

    They count on listeners with SCRAM: `quorumlog up --sasl scram-sha-256`.

    \b
    Examples:
      quorumlog users describe
      quorumlog users describe alice --json
    """
    found = cluster.ask(lambda admin: admin.describe_user_scram_credentials(users or None))
    described = [
        {
            "user": user,
            "credentials": [
                {"mechanism": one.mechanism, "iterations": one.iterations} for one in credentials
            ],
        }
        for user, credentials in found.items()
    ]
    rows = [
        (user, one and one.mechanism, one and one.iterations)
        for user, credentials in found.items()
        for one in credentials or (None,)
    ]
    lines = table(("USER", "MECHANISM", "ITERATIONS"), rows)
    cluster.outcome({"users": described}, *lines, empty="no users")


@cluster_command(app, "set")
def set_(
    cluster: Cluster,
    user: User,
    mechanism: Mechanism = None,
    iterations: Annotated[
        int, typer.Option(metavar="N", min=4096, max=16384, help="Number of hash iterations.")
    ] = 4096,
    password_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File with the password as its first line; -: standard input."
        ),
    ] = None,
) -> None:
    """Set a user's password for a mechanism.

    The command prompts for the password, unless --password-file is given.

    It holds from the user's next login on. With --dir it is recorded for `quorumlog client-config`.

    \b
    Examples:
      quorumlog users set alice
      quorumlog users set alice --mechanism SCRAM-SHA-512 --password-file secret.txt
    """
    password, its = _password(password_file), mechanism or _mechanism_of(cluster)
    new = NewScramCredential(user=user, password=password, mechanism=its, iterations=iterations)
    cluster.ask(lambda admin: admin.alter_user_scram_credentials([new]))
    _record(cluster, user, its, password)
    cluster.outcome({"user": user, "mechanism": its, "set": True}, f"set {its} of {user}")


@cluster_command(app)
def delete(cluster: Cluster, user: User, mechanism: Mechanism = None) -> None:
    """Delete a user's credential of a mechanism.

    \b
    Example:
      quorumlog users delete alice --mechanism SCRAM-SHA-512
    """
    its = mechanism or _mechanism_of(cluster)
    gone = [(user, its)]
    cluster.ask(lambda admin: admin.alter_user_scram_credentials(deletions=gone))
    _record(cluster, user, its, None)
    deleted = {"user": user, "mechanism": its, "deleted": True}
    cluster.outcome(deleted, f"deleted {its} of {user}")


def _mechanism_of(cluster: Cluster) -> str:
    """Return the mechanism that the listeners check, if the cluster is DIR's."""
    local = cluster.local()
    security = None if local is None else local.spec.security
    return (security and security.credential) or "SCRAM-SHA-256"


def _record(cluster: Cluster, user: str, mechanism: str, password: str | None) -> None:
    """Record the password that the listeners of DIR's cluster check from now on."""
    from quorumlog.cluster.security import record_password

    local = cluster.local()
    if local is None or local.spec.security is None:
        return
    security = local.spec.security
    if security.credential == mechanism:
        with cluster_errors():
            record_password(local.directory, user, password)
    elif security.mechanism is not None:
        say(f"no listener of this cluster checks it: they have {security.mechanism}")


def _password(file: str | None) -> str:
    """Read the password. It is no argument: every user of the machine sees arguments."""
    if file is None:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        try:
            text = sys.stdin.readline() if file == "-" else Path(file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            fail(f"--password-file: {text_of(error)}")
        password = text.partition("\n")[0].rstrip("\r")
    if not password:
        fail("the password is empty", EXIT_USAGE)
    return str(password)
