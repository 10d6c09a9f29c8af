"""Every table of legal changes covers all its states, and a test tries every pair of them.

A table is a module's mapping whose values are all `frozenset(...)`. The tests that are named here
hold a second copy of their table, on purpose: who changes a rule changes it twice.
"""

import ast
import importlib
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import pytest

ROOT = Path(__file__).parent.parent
PAIRS = {  # table -> the test that tries every pair of its states
    "quorumlog/broker/authentication/core/session.py:TRANSITIONS": (
        "unit/broker/authentication/test_session.py::test_every_pair_of_states"
    ),
    "quorumlog/broker/groups/core/consumer/states.py:GROUP_TRANSITIONS": (
        "unit/broker/groups/consumer/test_consumer_states.py::test_every_pair_of_group_states"
    ),
    "quorumlog/broker/groups/core/consumer/states.py:MEMBER_TRANSITIONS": (
        "unit/broker/groups/consumer/test_consumer_states.py::test_every_pair_of_member_states"
    ),
    "quorumlog/broker/groups/core/group.py:TRANSITIONS": (
        "unit/broker/groups/test_group_records.py::test_every_pair_of_states"
    ),
    "quorumlog/broker/transactions/core/states.py:TRANSITIONS": (
        "unit/broker/transactions/test_transaction_records.py::test_every_pair_of_states"
    ),
    "quorumlog/broker/partitions/core/roles.py:LEGAL_CHANGES": (
        "property/test_partition.py::test_every_pair_of_roles"
    ),
    "quorumlog/client/core/batch.py:TRANSITIONS": (
        "unit/client/test_client_states.py::test_every_pair_of_states_of_a_batch"
    ),
    "quorumlog/client/core/consumer_membership.py:CONSUMER_TRANSITIONS": (
        "unit/client/test_client_membership.py::test_every_pair_of_states"
    ),
    "quorumlog/client/core/membership.py:TRANSITIONS": (
        "property/test_client_membership.py::test_every_pair_of_states"
    ),
    "quorumlog/client/core/transactions.py:TRANSITIONS": (
        "unit/client/test_client_states.py::test_every_pair_of_states"
    ),
    "quorumlog/metadata_quorum/controller/brokers.py:TRANSITIONS": (
        "unit/metadata_quorum/test_controller_brokers.py"
        "::test_every_heartbeat_in_every_state_makes_a_legal_change"
    ),
    "quorumlog/metadata_quorum/core/roles.py:CHANGES_TO_A_NEWER_EPOCH": (
        "unit/metadata_quorum/test_quorum_voting.py::test_every_pair_of_roles"
    ),
    "quorumlog/metadata_quorum/core/roles.py:CHANGES_WITHIN_AN_EPOCH": (
        "unit/metadata_quorum/test_quorum_voting.py::test_every_pair_of_roles"
    ),
}


def is_table(mapping: ast.AST) -> bool:
    return (
        isinstance(mapping, ast.Dict)
        and len(mapping.values) > 1
        and all(ast.unparse(value).startswith("frozenset(") for value in mapping.values)
    )


def tables() -> list[str]:
    """Each as `path:name`, found in the text of every module."""
    return [
        f"{path.relative_to(ROOT).as_posix()}:{ast.unparse(statement.target)}"
        for path in sorted(ROOT.glob("quorumlog/**/*.py"))
        if "frozenset(" in (text := path.read_text())
        for statement in ast.parse(text).body
        if isinstance(statement, ast.AnnAssign) and any(map(is_table, ast.walk(statement)))
    ]


def states_beside(module: Any, state: Any) -> set[Any]:
    """All states of the machine that has this one: an Enum's, or those of a union of roles."""
    if isinstance(state, Enum):
        return set(type(state))
    unions = [set(get_args(one)) for one in vars(module).values() if isinstance(one, UnionType)]
    [states] = [union for union in unions if state in union]
    return states


def test_every_table_has_a_test_of_every_pair() -> None:
    assert sorted(tables()) == sorted(PAIRS)


@pytest.mark.parametrize("table", PAIRS)
def test_a_table_covers_all_its_states_and_its_test_is_there(table: str) -> None:
    path, name = table.split(":")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    changes = getattr(module, name)
    states = states_beside(module, next(iter(changes)))
    assert set(changes) == states
    assert {target for targets in changes.values() for target in targets} <= states
    test_file, test = PAIRS[table].split("::")
    assert f"def {test}(" in (ROOT / "tests" / test_file).read_text()
