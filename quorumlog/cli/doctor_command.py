"""`quorumlog doctor`: why clients cannot work with a cluster, from the place of a client."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from quorumlog.addresses import address_text
from quorumlog.cli.options import Json
from quorumlog.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    fail,
    one_line_errors,
    outcome,
    parse_settings,
)
from quorumlog.client.settings import addresses

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
CommandConfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A properties file with the settings of the client."),
]


def doctor(
    bootstrap: Bootstrap,
    client_property: Properties = None,
    command_config: CommandConfig = None,
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
    found = asyncio.run(examine(places, settings))
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


def _clock(skew_ms: int | None) -> str:
    if skew_ms is None:
        return "  the clocks were not compared: no broker shows the clock of the controller"
    return f"  the clock of the controller differs by {skew_ms} ms"
