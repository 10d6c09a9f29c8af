"""`quorumlog doctor`: why clients cannot work with a cluster, from the place of a client."""

import asyncio
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumlog.addresses import address_text
from quorumlog.cli.connect import Access, CommandConfig, Login, Sasl, TlsCa
from quorumlog.cli.options import Json
from quorumlog.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    fail,
    one_line_errors,
    outcome,
    parse_settings,
)
from quorumlog.client.security import SecuritySettings
from quorumlog.client.settings import addresses

if TYPE_CHECKING:
    from quorumlog.doctor.findings import Finding
    from quorumlog.wire.io.security import ConnectionSecurity

Bootstrap = Annotated[
    str, typer.Argument(metavar="BOOTSTRAP", help="Addresses as a client has them: HOST:PORT,...")
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--client-property",
        metavar="NAME=VALUE",
        help="A setting of the client, by the name of Java or librdkafka. Repeatable.",
    ),
]


def doctor(
    bootstrap: Bootstrap,
    client_property: Properties = None,
    command_config: CommandConfig = None,
    tls_ca: TlsCa = None,
    sasl: Sasl = None,
    login: Login = None,
    json: Json = False,
) -> None:
    """Find the reasons why clients cannot reach or use a cluster of any Kafka.

    Connects to each bootstrap address and to each address that the brokers advertise, and checks
    the client's settings against the brokers' limits. Judges from this machine: run it where the
    client runs. Ends with status 1 if it finds a fault.
    """
    from quorumlog.doctor import examine
    from quorumlog.doctor.client_settings import read_properties

    settings: dict[str, str] = {}
    if command_config is not None:
        with one_line_errors(OSError, ValueError, status=EXIT_USAGE):
            settings = read_properties(command_config)
    settings |= parse_settings(client_property or [], "--client-property")
    try:
        places = addresses(bootstrap)
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
    access = Access(tls_ca=tls_ca, sasl=sasl, login=login)
    security, unusable = _security(settings, access)
    found = asyncio.run(examine(places, settings, security))
    if unusable is not None:
        found = replace(found, findings=(*found.findings, unusable))
    described: dict[str, Any] = {
        "healthy": not found.findings,
        "bootstrap": [address_text(*place) for place in places],
        "cluster_id": found.cluster_id,
        "brokers": [{"id": one, "address": address} for one, address in found.brokers.items()],
        "clock_skew_ms": found.skew_ms,
        "findings": [asdict(finding) for finding in found.findings],
    }
    lines = []
    if found.cluster_id is not None:
        lines.append(f"cluster {found.cluster_id}, {len(found.brokers)} brokers:")
        lines += [f"  broker {one}  {address}" for one, address in found.brokers.items()]
        lines.append(_clock(found.skew_ms))
    for finding in found.findings:
        lines += [f"{finding.name}: {finding.why}", f"  -> {finding.remedy}"]
    count = len(found.findings)
    lines.append(f"{count} finding{'s' * (count > 1)}" if count else "healthy")
    outcome(described, *lines, json=json)
    if found.findings:
        raise typer.Exit(EXIT_FAILED)


def _security(
    settings: dict[str, str], access: Access
) -> tuple["ConnectionSecurity", "Finding | None"]:
    """Return the client's TLS and login, or plain text with the reason; add them to `settings`."""
    from quorumlog.doctor.findings import Finding
    from quorumlog.wire.io.security import PLAINTEXT

    try:
        options = access.over(settings)
        names = {"bootstrap_servers", "client_id"}
        client = SecuritySettings(**{k: v for k, v in options.items() if k not in names})
        settings["security.protocol"] = client.security_protocol
        if client.sasl_mechanism is not None:
            settings["sasl.mechanism"] = client.sasl_mechanism
        return client.connection_security(), None
    except (OSError, ValueError) as error:
        finding = Finding(
            name="client-security",
            subject="security.protocol",
            why=f"the client's settings of TLS and SASL cannot be used: {error}",
            remedy="correct them; nothing behind TLS or SASL was examined",
        )
        return PLAINTEXT, finding


def _clock(skew_ms: int | None) -> str:
    if skew_ms is None:
        return "  the clocks were not compared: no broker shows the clock of the controller"
    return f"  the clock of the controller differs by {skew_ms} ms"
