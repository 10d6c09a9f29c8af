"""What a program loads: nothing that it did not ask for, and every public name when it is used."""

import subprocess
import sys

import pytest

import quorumlog.client
import quorumlog.client.admin

LOADED = """
import sys
{statement}
print(*sorted(name for name in sys.modules if name.startswith("quorumlog.")))
"""


def loaded_by(statement: str) -> set[str]:
    program = [sys.executable, "-c", LOADED.format(statement=statement)]
    ended = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    return {*ended.stdout.split()}


def test_clients_load_neither_groups_nor_administration_before_they_are_used() -> None:
    loaded = loaded_by("from quorumlog import Admin, Consumer, Producer")
    assert "quorumlog.client.io.sender" in loaded
    late = {
        "core.membership",
        "core.assignors",
        "group_client",
        "admin.topics",
        "admin.groups",
        "sync",
    }
    assert not {f"quorumlog.client.{name}" for name in late} & loaded
    messages = {name for name in loaded if name.startswith("quorumlog.wire.codec.messages.")}
    assert not {name for name in messages if "group" in name or "config" in name}


def test_an_error_alone_loads_no_client() -> None:
    loaded = loaded_by("from quorumlog.client import ErrorCode, KafkaError, TopicPartition")
    assert not {"quorumlog.client.producer", "quorumlog.client.admin"} & loaded


def test_every_public_name_is_there() -> None:
    for name in quorumlog.client.__all__:
        assert getattr(quorumlog.client, name).__name__ == name
    assert dir(quorumlog.client) == sorted(quorumlog.client.__all__)
    for name in quorumlog.client.admin.__all__:
        assert getattr(quorumlog.client.admin, name) is not None


@pytest.mark.parametrize("module", ["quorumlog.client", "quorumlog.client.admin"])
def test_a_name_that_is_not_there_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        getattr(sys.modules[module], "nothing")  # noqa: B009 - mypy would see the mistake
