"""`quorumlog chaos list`: what the lab has, and what this machine lacks."""

from typing import Annotated, Any

import typer

from quorumlog.chaos.listing import listing
from quorumlog.cli.output import data, document


def list_command(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List workloads, faults, drivers, mutants; what is missing here."""
    described = listing()
    if json:
        document(described)
        return
    data("workloads")
    for name, workload in described["workloads"].items():
        needs = f"  (needs {', '.join(workload['requires'])})" if workload["requires"] else ""
        data(f"  {name:25} {workload['what']}{needs}")
        for option, text in workload["options"].items():
            data(f"    {option:16} {text}")
    data("faults")
    for fault in described["faults"]:
        data(f"  {fault['name']:18} {fault['what']}")
        if not fault["available"]:
            data(f"  {'':18} not here: {fault['why_not']}")
    for group in ("back_ends", "models", "mutants"):
        data(group.replace("_", " "))
        for name, text in described[group].items():
            data(f"  {name:18} {text}")
    data("drivers")
    for name, driver in described["drivers"].items():
        data(f"  {name:18} {driver['what']}  ({_abilities(driver)})")
    data("capabilities of drivers, beside sending and reading")
    for name, text in described["capabilities"].items():
        data(f"  {name:18} {text}")
    data(f"roles\n  {', '.join(described['roles'])}")


def _abilities(driver: dict[str, Any]) -> str:
    return ", ".join(driver["can"]) or "sends and reads only" if driver["here"] else "not installed"
