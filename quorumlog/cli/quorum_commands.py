"""`quorumlog quorum`: describe, add-voter, remove-voter."""

from typing import Annotated, Any, Final

import typer

from quorumlog.cli.connect import Cluster, cluster_command
from quorumlog.cli.options import command_group
from quorumlog.cli.output import EXIT_USAGE, fail, table
from quorumlog.client import Admin
from quorumlog.client.descriptions import QuorumDescription, QuorumReplica

app = command_group("Show the metadata quorum, and change its voters.")

_COLUMNS: Final = ("replica_id", "role", "log_end_offset", "lag", "lag_ms")
_HEADERS: Final = ("NODE", "ROLE", "LOG END", "LAG", "LAG MS")
Row = dict[str, Any]
Node = Annotated[int, typer.Option("--node", metavar="N", min=0, help="Node id of the controller.")]
DirectoryId = Annotated[
    str | None,
    typer.Option(
        "--directory",
        metavar="ID",
        help="directory.id in meta.properties of its log directory. Default: the id in its "
        "fetches.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address of its control listener. Default: the registered address.",
    ),
]


@cluster_command(app)
def describe(cluster: Cluster) -> None:
    """Show the leader, the voters, the observers and their lag.

    LAG counts the leader's records that a node lacks. LAG MS is the time since the node
    last had all of them, by the leader's clock.

    \b
    Examples:
      quorumlog quorum describe
      quorumlog quorum describe --json | jq .leader_id
    """
    quorum = cluster.ask(Admin.describe_quorum)
    leader = next((one for one in quorum.voters if one.replica_id == quorum.leader_id), None)
    voters = [_row(one, leader) for one in quorum.voters]
    observers = [_row(one, leader) for one in quorum.observers]
    addresses = {str(node): where for node, where in sorted(quorum.addresses.items())}
    described = {
        "leader_id": quorum.leader_id,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "voters": voters,
        "observers": observers,
        "addresses": addresses,
    }
    shown = [
        row | {"role": "leader" if row["replica_id"] == quorum.leader_id else "voter"}
        for row in voters
    ]
    shown += [row | {"role": "observer"} for row in observers]
    title = (
        f"leader {quorum.leader_id}, epoch {quorum.leader_epoch}, "
        f"committed up to {quorum.high_watermark}"
    )
    rows = [[row[name] for name in _COLUMNS] for row in shown]
    cluster.outcome(described, title, *table(_HEADERS, rows))


@cluster_command(app)
def add_voter(
    cluster: Cluster, node: Node, directory_id: DirectoryId = None, address: Address = None
) -> None:
    """Make an observer a voter; wait until that is committed.

    Requires kraft.version 1, and a running node with the role controller that has caught up.

    \b
    Examples:
      quorumlog quorum add-voter --node 4
      quorumlog quorum add-voter --node 4 --directory Lg3aKzQ3QEqK2m6XTyFz3w --address here:19095
    """

    async def work(admin: Admin) -> Row:
        quorum = await admin.describe_quorum()
        if directory_id is None and (voter := _known_directory(quorum.voters, node)) is not None:
            if _known_directory(quorum.observers, node) in {None, voter}:
                fail(f"node {node} is a voter already, with directory {voter}")
            fail(
                f"node {node} is a voter with directory {voter}, but runs with another directory: "
                f"run quorumlog quorum remove-voter --node {node}, then add it"
            )
        found = directory_id or _known_directory(quorum.observers, node)
        where = address or quorum.addresses.get(node)
        if found is None or where is None:
            what = "--directory" if found is None else "--address"
            fail(f"node {node} is no observer of the leader: start it, or give its {what}")
        await admin.add_raft_voter(node, _uuid(found), where)
        return {"node": node, "directory_id": found, "address": where, "voter": True}

    done = cluster.ask(work)
    cluster.outcome(done, f"node {node} is a voter")


@cluster_command(app)
def remove_voter(cluster: Cluster, node: Node, directory_id: DirectoryId = None) -> None:
    """Make a voter an observer; wait until that is committed.

    The voter does not have to run.

    \b
    Examples:
      quorumlog quorum remove-voter --node 2
      quorumlog quorum remove-voter --node 2 --directory Lg3aKzQ3QEqK2m6XTyFz3w
    """

    async def work(admin: Admin) -> Row:
        quorum = await admin.describe_quorum()
        found = directory_id or _known_directory(quorum.voters, node)
        if found is None and _is_voter(quorum, node):
            fail(f"node {node} has not fetched from the leader: wait, or give its --directory")
        if found is None:
            fail(f"node {node} is no voter")
        await admin.remove_raft_voter(node, _uuid(found))
        return {"node": node, "directory_id": found, "voter": False}

    done = cluster.ask(work)
    cluster.outcome(done, f"node {node} is no longer a voter")


def _known_directory(replicas: tuple[QuorumReplica, ...], node: int) -> str | None:
    known = (_directory_id(one.directory_id) for one in replicas if one.replica_id == node)
    return next(known, None)


def _is_voter(quorum: QuorumDescription, node: int) -> bool:
    return any(one.replica_id == node for one in quorum.voters)


def _uuid(text: str) -> bytes:
    from quorumlog.storage.io.checkpoints import uuid_from_text

    try:
        return uuid_from_text(text)
    except ValueError:
        fail(f"--directory {text}: not a directory.id", EXIT_USAGE)


def _row(one: QuorumReplica, leader: QuorumReplica | None) -> Row:
    """Describe a replica; unknown fields are None."""
    end_offset = _known(one.log_end_offset)
    caught_up_ms = _known(one.last_caught_up_timestamp_ms)
    last_end = None if leader is None else _known(leader.log_end_offset)
    now_ms = None if leader is None else _known(leader.last_caught_up_timestamp_ms)
    return {
        "replica_id": one.replica_id,
        "directory_id": _directory_id(one.directory_id),
        "log_end_offset": end_offset,
        "lag": _behind(end_offset, last_end),
        "lag_ms": _behind(caught_up_ms, now_ms),
        "last_fetch_timestamp_ms": _known(one.last_fetch_timestamp_ms),
        "last_caught_up_timestamp_ms": caught_up_ms,
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _behind(reached: int | None, end: int | None) -> int | None:
    return None if reached is None or end is None else max(0, end - reached)


def _directory_id(directory_id: bytes) -> str | None:
    from quorumlog.storage.io.checkpoints import uuid_to_text

    return uuid_to_text(directory_id) if any(directory_id) else None
