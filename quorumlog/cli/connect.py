"""Finds the cluster of a command and the user's login, and reports a missing cluster."""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from inspect import Signature, signature
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from quorumlog.addresses import address_text
from quorumlog.cli.options import DEFAULT_DIR, Dir, Json
from quorumlog.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    cluster_errors,
    fail,
    one_line_errors,
    outcome,
    say,
)
from quorumlog.client import KafkaError
from quorumlog.client.security import SecuritySettings
from quorumlog.client.settings import addresses

if TYPE_CHECKING:
    from quorumlog.client import Admin
    from quorumlog.cluster import LocalCluster

_Result = TypeVar("_Result")

_ELSEWHERE: Final = "127.0.0.1:9092"
_REFUSED_MAX_S: Final = 1.0
_REFUSED_PAUSE_S: Final = 0.1
VARIABLE: Final = "QUORUMLOG_PASSWORD"
_PROTOCOLS: Final = {
    (False, True): "SSL",
    (True, False): "SASL_PLAINTEXT",
    (True, True): "SASL_SSL",
}
"""By (has SASL, has TLS)."""
_NO_PROTECTION: Final = frozenset({"bootstrap_servers", "client_id"})

Bootstrap = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT,...",
        help=f"Brokers to connect to. Default: the cluster in DIR, else {_ELSEWHERE}.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Properties of a Java client or of librdkafka: TLS, SASL, addresses."
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Connect by TLS; the CA that signed the brokers, in PEM."),
]
Sasl = Annotated[
    str | None,
    typer.Option(
        metavar="MECHANISM",
        help="Authenticate: plain, scram-sha-256, scram-sha-512 or oauthbearer.",
    ),
]
Login = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="NAME[:PASSWORD]",
        help="The user of --sasl. NAME:@FILE reads the password from a file, which `ps` does not "
        f"show. NAME alone takes it from {VARIABLE}, or prompts for it.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The options of a command that protect its connections."""

    command_config: Path | None = None
    tls_ca: Path | None = None
    sasl: str | None = None
    login: str | None = None

    def options(self) -> dict[str, Any]:
        """Return arguments of a client, also addresses if the file has them; empty: none given.

        Ends the command for options that cannot hold together.
        """
        with one_line_errors(OSError, ValueError, status=EXIT_USAGE):
            found = self._options()
            addresses = {name: found[name] for name in _NO_PROTECTION if name in found}
            SecuritySettings(**{k: v for k, v in found.items() if k not in addresses})
        return found

    def _options(self) -> dict[str, Any]:
        from quorumlog.doctor.client_settings import read_properties

        file = self.command_config
        return self.over({} if file is None else read_properties(file))

    def over(self, properties: Mapping[str, str]) -> dict[str, Any]:
        """Return arguments of a client: the options, over these properties.

        Raises OSError, ValueError.
        """
        from quorumlog.cli.client_properties import client_options, mechanism_of, unsigned

        found = client_options(properties)
        protocol = str(found.get("security_protocol", "PLAINTEXT"))
        has_tls, has_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
        if self.tls_ca is not None:
            found["ssl_ca"], has_tls = self.tls_ca, True
        if self.sasl is not None:
            found["sasl_mechanism"], has_sasl = mechanism_of(self.sasl), True
        if self.login is not None:
            if not has_sasl:
                raise ValueError("--user: name its mechanism by --sasl")
            name, password = _login(self.login)
            if found.get("sasl_mechanism") == "OAUTHBEARER":
                found |= {"sasl_token": unsigned(name) if password is None else password}
            else:
                password = _asked(name) if password is None else password
                found |= {"sasl_username": name, "sasl_password": password}
        if has_tls or has_sasl:
            found["security_protocol"] = _PROTOCOLS[has_sasl, has_tls]
        return found


NOTHING: Final = Access()


def _login(text: str) -> tuple[str, str | None]:
    """Return the name and the password. Raises OSError."""
    name, colon, password = text.partition(":")
    if not colon:
        return name, os.environ.get(VARIABLE)
    if password.startswith("@"):
        lines = Path(password[1:]).read_text(encoding="utf-8").splitlines()
        return name, lines[0] if lines else ""
    return name, password


def _asked(name: str) -> str:
    """Read a password from the terminal. Ends the command if there is none."""
    if sys.stdin is None or not sys.stdin.isatty():
        fail(f"--user {name}: give its password in {VARIABLE}, or {name}:@FILE", EXIT_USAGE)
    password: str = typer.prompt(f"Password of {name}", hide_input=True, err=True)
    return password


def resolve(
    bootstrap: str | None,
    directory: Path = DEFAULT_DIR,
    access: Access = NOTHING,
    *,
    option: str = "--bootstrap",
) -> dict[str, Any]:
    """Return the arguments of a client: addresses, TLS and login.

    Without any of the options, the client may do everything in the cluster of `directory`. Ends the
    command if that cluster is down. `option`: the name of the option `bootstrap`, for its errors.
    """
    options = access.options()
    of_file = options.pop("bootstrap_servers", None)
    source = "bootstrap.servers of the file" if bootstrap is None else option
    bootstrap = of_file if bootstrap is None else bootstrap  # an empty one names no cluster
    if bootstrap is not None:
        return {**options, "bootstrap_servers": _listening(bootstrap, source)}
    from quorumlog.cluster import LocalCluster
    from quorumlog.cluster.layout import CLUSTER_FILE

    if directory == DEFAULT_DIR and not (directory / CLUSTER_FILE).exists():
        say(f"no cluster in {directory} (`quorumlog up` makes one): connecting to {_ELSEWHERE}")
        return {**options, "bootstrap_servers": _listening(_ELSEWHERE)}
    with cluster_errors():
        cluster = LocalCluster.open(directory)
    if not cluster.running():
        fail(f"the cluster in {directory} does not run; `quorumlog up` starts it")
    return {**options, "bootstrap_servers": cluster.bootstrap} if options else cluster.own_client()


def _listening(bootstrap: str, source: str = "--bootstrap") -> str:
    """Return the addresses. Ends the command if every one refuses connections for a second.

    A client waits longer, for brokers that start later; a command must answer quickly. `source`:
    the option that has the addresses.
    """
    try:
        places = addresses(bootstrap)
    except ValueError as error:
        fail(str(error).replace("bootstrap_servers", source, 1), EXIT_USAGE)
    deadline_s = monotonic() + _REFUSED_MAX_S
    while all(_refuses(*place) for place in places):
        if monotonic() > deadline_s:
            names = ", ".join(address_text(*place) for place in places)
            fail(f"connection refused by {names}: no process listens there", EXIT_FAILED)
        sleep(_REFUSED_PAUSE_S)
    return bootstrap


def _refuses(host: str, port: int) -> bool:
    """Return whether the address refuses connections. The client reports other errors."""
    try:
        socket.create_connection((host, port), timeout=_REFUSED_MAX_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a command's client; an error of the cluster is one line and exit status 1."""
    try:
        return asyncio.run(work)
    except (KafkaError, ValueError) as error:
        fail(str(error), EXIT_FAILED)


class Cluster:
    """The cluster that a command's options name, and the output of that command."""

    def __init__(
        self, bootstrap: str | None, directory: Path, access: Access = NOTHING, *, json: bool
    ) -> None:
        self._bootstrap: Final = bootstrap
        self._access: Final = access
        self._directory: Final = directory
        self.json: Final = json

    def ask(self, work: Callable[["Admin"], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run `work` with an admin client. Errors end the command, as in `resolve` and `run`."""
        from quorumlog.client import Admin  # `produce` and `consume` need none

        client = self.client()

        async def connected() -> _Result:
            async with Admin(**client) as admin:
                return await work(admin)

        return run(connected())

    def client(self) -> dict[str, Any]:
        """Return the arguments of a client. Errors end the command, as in `resolve`."""
        return resolve(self._bootstrap, self._directory, self._access)

    def local(self) -> "LocalCluster | None":
        """Return the cluster of DIR; None if the options name brokers, or DIR has no cluster."""
        from quorumlog.cluster import LocalCluster
        from quorumlog.cluster.layout import CLUSTER_FILE

        is_named = self._bootstrap is not None or self._access.command_config is not None
        if is_named or not (self._directory / CLUSTER_FILE).exists():
            return None
        with cluster_errors():
            return LocalCluster.open(self._directory)

    def outcome(self, value: Any, *lines: str, empty: str = "") -> None:
        """Print the result, as `output.outcome` does."""
        outcome(value, *lines, json=self.json, empty=empty)


def on_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of a cluster, and --json, in place of `cluster`."""

    def run_on(*, json: Json = False, **given: Any) -> None:
        _run_on(command, given, json=json)

    return _with_options(command, run_on)


def with_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command as `on_cluster` does, but without --json: it may have its own."""

    def run_with(**given: Any) -> None:
        _run_on(command, given, json=False)

    return _with_options(command, run_with)


def _of_cluster(
    *,
    bootstrap: Bootstrap = None,
    directory: Dir = DEFAULT_DIR,
    command_config: CommandConfig = None,
    tls_ca: TlsCa = None,
    sasl: Sasl = None,
    login: Login = None,
) -> tuple[str | None, Path, Access]:
    """Return the cluster that the options name."""
    access = Access(command_config=command_config, tls_ca=tls_ca, sasl=sasl, login=login)
    return bootstrap, directory, access


def _run_on(command: Callable[..., None], given: dict[str, Any], *, json: bool) -> None:
    names = signature(_of_cluster).parameters
    place = {name: given.pop(name) for name in names if name in given}
    command(Cluster(*_of_cluster(**place), json=json), **given)


def _with_options(command: Callable[..., None], run: Callable[..., None]) -> Callable[..., None]:
    """Give `run` the parameters of the command but `cluster`, then the options of the cluster."""
    _, *own = signature(command).parameters.values()
    *shared, _ = signature(run).parameters.values()
    parameters = [*own, *signature(_of_cluster).parameters.values(), *shared]
    update_wrapper(run, command)
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # inspect reads it
    return run


def cluster_command(
    app: typer.Typer, name: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds a command of `on_cluster` to a group."""
    return lambda command: app.command(name)(on_cluster(command))
