"""`quorumlog acls`: list, add and remove."""

from dataclasses import asdict
from typing import Annotated, Final

import typer

from quorumlog.cli.connect import Cluster, cluster_command
from quorumlog.cli.options import command_group
from quorumlog.cli.output import EXIT_USAGE, fail, table
from quorumlog.client import Acl, AclFilter

app = command_group(
    "Show and change ACLs. Brokers enforce them only if authorizer.class.name is set."
)

_NO_ACLS: Final = "no ACLs"
_CLUSTER_NAME: Final = "kafka-cluster"
_COLUMNS: Final = (
    "permission",
    "principal",
    "host",
    "operation",
    "resource_type",
    "pattern_type",
    "resource_name",
)
_HEADERS: Final = ("PERMISSION", "PRINCIPAL", "HOST", "OPERATION", "RESOURCE", "PATTERN", "NAME")

ResourceType = Annotated[
    str | None, typer.Option(metavar="TYPE", help="topic, group, cluster, transactional-id, ...")
]
ResourceName = Annotated[
    str | None,
    typer.Option("--resource", metavar="NAME", help="Name of the resource; '*': every resource."),
]
Pattern = Annotated[
    str | None,
    typer.Option(metavar="P", help="literal, prefixed, or match: all ACLs that apply to the name."),
]
Principal = Annotated[str | None, typer.Option(metavar="User:NAME", help="Principal of the ACL.")]
Host = Annotated[str | None, typer.Option(metavar="HOST", help="Client address; '*': any.")]
Operation = Annotated[str | None, typer.Option(metavar="OP", help="read, write, describe, ...")]
Permission = Annotated[str | None, typer.Option(metavar="allow|deny", help="allow or deny.")]


@cluster_command(app, "list")
def list_(
    cluster: Cluster,
    resource_type: ResourceType = None,
    resource: ResourceName = None,
    pattern: Pattern = None,
    principal: Principal = None,
    host: Host = None,
    operation: Operation = None,
    permission: Permission = None,
) -> None:
    """Show the ACLs that match all of the options.

    Brokers enforce ACLs only if authorizer.class.name is set.

    \b
    Examples:
      quorumlog acls list
      quorumlog acls list --resource-type topic --resource orders --pattern match
    """
    wanted = AclFilter(
        resource_type=_word(resource_type),
        resource_name=resource,
        pattern_type=_word(pattern),
        principal=principal,
        host=host,
        operation=_word(operation),
        permission=_word(permission),
    )
    found = cluster.ask(lambda admin: admin.describe_acls(wanted))
    cluster.outcome({"acls": list(map(asdict, found))}, *_lines(found), empty=_NO_ACLS)


@cluster_command(app)
def add(
    cluster: Cluster,
    principal: Annotated[str, typer.Option(metavar="User:NAME", help="The principal.")],
    operation: Annotated[
        list[str], typer.Option(metavar="OP", help="read, write, describe, all, ... Repeatable.")
    ],
    resource_type: Annotated[
        str, typer.Option(metavar="TYPE", help="topic, group, cluster, transactional-id, ...")
    ] = "topic",
    resource: ResourceName = None,
    prefixed: Annotated[
        bool, typer.Option("--prefixed", help="All names that begin with NAME.")
    ] = False,
    deny: Annotated[
        bool, typer.Option("--deny", help="Deny the operations instead of allowing them.")
    ] = False,
    host: Annotated[str, typer.Option(metavar="HOST", help="Client address.")] = "*",
) -> None:
    """Add an ACL for each operation; existing ACLs stay.

    Brokers enforce ACLs only if authorizer.class.name is set.

    \b
    Examples:
      quorumlog acls add --principal User:alice --operation read --resource orders
      quorumlog acls add --principal User:app --operation all --resource app- --prefixed
    """
    kind = str(_word(resource_type))
    name = _CLUSTER_NAME if resource is None and kind == "cluster" else resource
    if name is None:
        fail("the resource has no name: add --resource NAME", EXIT_USAGE)
    acls = [
        Acl(
            resource_type=kind,
            resource_name=name,
            pattern_type="prefixed" if prefixed else "literal",
            principal=principal,
            host=host,
            operation=str(_word(one)),
            permission="deny" if deny else "allow",
        )
        for one in operation
    ]
    cluster.ask(lambda admin: admin.create_acls(acls))
    cluster.outcome({"added": list(map(asdict, acls))}, *_lines(acls))


@cluster_command(app)
def remove(
    cluster: Cluster,
    resource_type: ResourceType = None,
    resource: ResourceName = None,
    pattern: Pattern = None,
    principal: Principal = None,
    host: Host = None,
    operation: Operation = None,
    permission: Permission = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove every ACL of the cluster.")
    ] = False,
) -> None:
    """Remove the ACLs that match all of the options, and show them.

    \b
    Examples:
      quorumlog acls remove --principal User:alice
      quorumlog acls remove --resource-type topic --resource orders --operation write
    """
    wanted = AclFilter(
        resource_type=_word(resource_type),
        resource_name=resource,
        pattern_type=_word(pattern),
        principal=principal,
        host=host,
        operation=_word(operation),
        permission=_word(permission),
    )
    if (wanted == AclFilter()) is not everything:
        fail("choose the ACLs to remove by options, or all of them by --all", EXIT_USAGE)
    gone = cluster.ask(lambda admin: admin.delete_acls([wanted]))
    cluster.outcome({"removed": list(map(asdict, gone))}, *_lines(gone), empty=_NO_ACLS)


def _word(text: str | None) -> str | None:
    """Return the word in the client's spelling: Kafka's tools write TransactionalId."""
    if text is None:
        return None
    plain = text.replace("-", "").replace("_", "").lower()
    return _SPELLINGS.get(plain, text)


def _spellings() -> dict[str, str]:
    from quorumlog.client.admin import acls

    kinds = (acls.RESOURCE_TYPES, acls.PATTERN_TYPES, acls.OPERATIONS, acls.PERMISSIONS)
    return {word.replace("_", ""): word for words in kinds for word in (*words, "match")}


_SPELLINGS: Final = _spellings()


def _lines(acls: list[Acl]) -> list[str]:
    return table(_HEADERS, [[asdict(acl)[name] for name in _COLUMNS] for acl in acls])
