"""`quorumlog quorum`: describe."""

from typing import Any, Final

from quorumlog.cli.connect import Bootstrap, ask_admin
from quorumlog.cli.options import DEFAULT_DIR, Dir, Json, command_group
from quorumlog.cli.output import outcome
from quorumlog.cli.table import table
from quorumlog.client import Admin
from quorumlog.client.descriptions import QuorumDescription, QuorumReplica

app = command_group("Show the metadata quorum: its leader, voters and observers.")

_COLUMNS: Final = ("replica_id", "role", "log_end_offset", "lag", "lag_ms")
_HEADERS: Final = ("NODE", "ROLE", "LOG END", "LAG", "LAG MS")
Row = dict[str, Any]


@app.callback()
def _group() -> None:
    """Keep `describe` a command of a group although there is no other one."""


@app.command()
def describe(bootstrap: Bootstrap = None, directory: Dir = DEFAULT_DIR, json: Json = False) -> None:
    """Show the leader, the voters and the observers, and their lag.

    LAG counts the records that a node lacks of the leader's log. LAG MS is the time since the node
    last had all of them, by the leader's clock.

    \b
    Examples:
      quorumlog quorum describe
      quorumlog quorum describe --json | jq .leader_id
    """
    quorum = ask_admin(bootstrap, directory, Admin.describe_quorum)
    leader = next((one for one in quorum.voters if one.replica_id == quorum.leader_id), None)
    voters = [_row(one, leader) for one in quorum.voters]
    observers = [_row(one, leader) for one in quorum.observers]
    described = {
        "leader_id": quorum.leader_id,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "voters": voters,
        "observers": observers,
    }
    shown = [row | {"role": _role_of(row, quorum)} for row in voters]
    shown += [row | {"role": "observer"} for row in observers]
    title = (
        f"leader {quorum.leader_id}, epoch {quorum.leader_epoch}, "
        f"committed up to {quorum.high_watermark}"
    )
    rows = [[row[name] for name in _COLUMNS] for row in shown]
    outcome(described, title, *table(_HEADERS, rows), json=json)


def _role_of(row: Row, quorum: QuorumDescription) -> str:
    return "leader" if row["replica_id"] == quorum.leader_id else "voter"


def _row(one: QuorumReplica, leader: QuorumReplica | None) -> Row:
    """Describe a replica; what is not known is None."""
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
