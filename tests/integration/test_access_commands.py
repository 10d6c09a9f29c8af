"""The commands for ACLs, quotas, users and features, against a cluster of real processes."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in __all__
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE
from quorumlog.client import AclFilter
from quorumlog.client.sync import SyncAdmin
from quorumlog.cluster import LocalCluster
from tests.support.cli.in_process import CommandLine

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("access_commands")]
Run = CommandLine


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("access") / "cluster", nodes=3, port=0) as cluster:
        yield cluster


@pytest.fixture
def run(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run commands against one node, which has seen what it has answered."""
    return CommandLine(cluster.bootstrap.partition(",")[0], monkeypatch, capsys)


def test_acls_are_added_listed_and_removed(run: Run, cluster: LocalCluster) -> None:
    added = run(
        *("acls", "add", "--principal", "User:alice", "--resource", "orders"),
        *("--operation", "read", "--operation", "Write"),
    )
    assert added.splitlines() == [
        "PERMISSION  PRINCIPAL   HOST  OPERATION  RESOURCE  PATTERN  NAME",
        "allow       User:alice  *     read       topic     literal  orders",
        "allow       User:alice  *     write      topic     literal  orders",
    ]
    run(
        *("acls", "add", "--principal", "User:bob", "--resource", "app-", "--prefixed", "--deny"),
        *("--resource-type", "TransactionalId", "--operation", "all", "--host", "10.0.0.1"),
    )
    run(
        *("acls", "add", "--principal", "User:bob", "--resource-type", "cluster"),
        *("--operation", "ClusterAction"),
    )
    assert run.json("acls", "list", "--principal", "User:bob")["acls"] == [
        {
            "resource_type": "cluster",
            "resource_name": "kafka-cluster",
            "pattern_type": "literal",
            "principal": "User:bob",
            "host": "*",
            "operation": "cluster_action",
            "permission": "allow",
        },
        {
            "resource_type": "transactional_id",
            "resource_name": "app-",
            "pattern_type": "prefixed",
            "principal": "User:bob",
            "host": "10.0.0.1",
            "operation": "all",
            "permission": "deny",
        },
    ]
    run("acls", "remove", "--all")


def test_acls_of_patterns_are_found_also_by_other_clients(run: Run, cluster: LocalCluster) -> None:
    orders = ("acls", "add", "--principal", "User:alice", "--resource", "orders")
    run(*orders, "--operation", "read", "--operation", "write")
    prefixed = ("acls", "add", "--principal", "User:bob", "--resource", "app-", "--prefixed")
    run(*prefixed, "--resource-type", "transactional-id", "--operation", "all")
    matching = ("--resource-type", "transactional-id", "--resource", "app-1", "--pattern", "match")
    assert len(run.json("acls", "list", *matching)["acls"]) == 1
    by_kafka = AclBindingFilter(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.ANY,
        AclPermissionType.ALLOW,
    )
    first = cluster.bootstrap.partition(",")[0]
    theirs = AdminClient({"bootstrap.servers": first})
    seen = theirs.describe_acls(by_kafka).result(30)
    assert {one.operation for one in seen} == {AclOperation.READ, AclOperation.WRITE}
    run("acls", "remove", "--all")


def test_removed_acls_are_shown_and_mistakes_are_one_line(run: Run) -> None:
    both = ("--operation", "read", "--operation", "write")
    run("acls", "add", "--principal", "User:alice", "--resource", "orders", *both)
    run("acls", "add", "--principal", "User:bob", "--resource", "orders", *both)
    assert "choose the ACLs to remove" in run("acls", "remove", status=EXIT_USAGE)
    assert "choose the ACLs to remove" in run(
        "acls", "remove", "--all", "--host", "*", status=EXIT_USAGE
    )
    assert len(run.json("acls", "remove", "--principal", "User:alice")["removed"]) == 2
    assert len(run.json("acls", "remove", "--all")["removed"]) == 2
    assert (run("acls", "list"), run.said) == ("", "no ACLs\n")
    words = ("acls", "add", "--principal", "User:a", "--operation", "raed", "--resource", "t")
    assert "operation 'raed' must be one of 'all', 'read'" in run(*words, status=EXIT_FAILED)
    assert "--resource NAME" in run(*words[:-2], status=EXIT_USAGE)
    without_type = ("acls", "add", "--principal", "a", "--operation", "read", "--resource", "t")
    assert "INVALID_REQUEST" in run(*without_type, status=EXIT_FAILED)


def test_quotas_are_altered_and_described(run: Run) -> None:
    alice = ("--entity", "user=alice", "--entity", "client-id=")
    altered = run("quotas", "alter", *alice, "--set", "producer_byte_rate=1048576")
    assert altered == "altered user=alice client-id=(default)\n"
    run("quotas", "alter", *alice, "--set", "request_percentage=0.5")
    assert run("quotas", "describe").splitlines() == [
        "ENTITY                          QUOTA               VALUE",
        "client-id=(default) user=alice  producer_byte_rate  1048576",
        "client-id=(default) user=alice  request_percentage  0.5",
    ]
    assert run.json("quotas", "describe", "--entity", "user=alice", "--any", "client-id") == {
        "quotas": [
            {
                "entity": {"client-id": None, "user": "alice"},
                "values": {"producer_byte_rate": 1048576, "request_percentage": 0.5},
            }
        ]
    }
    only_users = ("quotas", "describe", "--any", "user", "--strict")
    assert (run(*only_users), run.said) == ("", "no quotas\n")
    delete = ("--delete", "producer_byte_rate", "--delete", "request_percentage")
    assert run.json("quotas", "alter", *alice, *delete)["altered"]
    assert (run("quotas", "describe"), run.said) == ("", "no quotas\n")
    assert "no entity is given" in run("quotas", "alter", "--set", "a=1", status=EXIT_USAGE)
    assert "nothing to change" in run("quotas", "alter", *alice, status=EXIT_USAGE)
    assert "must be a number" in run("quotas", "alter", *alice, "--set", "a=b", status=EXIT_USAGE)
    assert "INVALID_REQUEST" in run("quotas", "alter", *alice, "--set", "a=1", status=EXIT_FAILED)


def test_users_get_and_lose_passwords(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden\nnot this\n")
    assert "hidden" not in run("users", "set", "alice", "--password-file", str(secret))
    monkeypatch.setattr(sys, "stdin", io.StringIO("other\n"))
    strong = ("--mechanism", "SCRAM-SHA-512")
    more = ("--iterations", "8192", "--password-file", "-")
    assert run.json("users", "set", "alice", *strong, *more)["set"] is True
    assert run("users", "describe", "alice", "bob").splitlines() == [
        "USER   MECHANISM      ITERATIONS",
        "alice  SCRAM-SHA-256        4096",
        "alice  SCRAM-SHA-512        8192",
        "bob    -                       -",
    ]
    assert run.json("users", "describe", "bob")["users"] == [{"user": "bob", "credentials": []}]
    assert run("users", "delete", "alice") == "deleted SCRAM-SHA-256 of alice\n"
    run("users", "delete", "alice", *strong)
    assert (run("users", "describe"), run.said) == ("", "no users\n")
    assert "RESOURCE_NOT_FOUND" in run("users", "delete", "alice", status=EXIT_FAILED)
    secret.write_text("\n")
    words = ("users", "set", "alice", "--password-file")
    assert "the password is empty" in run(*words, str(secret), status=EXIT_USAGE)
    assert "No such file" in run(*words, str(tmp_path / "none"), status=EXIT_FAILED)


def test_features_are_shown_lowered_and_raised(run: Run, cluster: LocalCluster) -> None:
    assert run("features", "describe").splitlines() == [
        "FEATURE                           LEVEL  LEAST  GREATEST",
        "eligible.leader.replicas.version      1      1         1",
        "group.version                         1      0         1",
        "kraft.version                         1      0         1",
        "metadata.version                     27     27        27",
        "quorumlog.metadata.version            7      1         7",
        "transaction.version                   2      0         2",
    ]
    run("acls", "remove", "--all")
    name = "quorumlog.metadata.version"
    tried = run.json("features", "downgrade", f"{name}=1", "--dry-run")
    assert tried == {"levels": {name: 1}, "changed": False}
    assert run("features", "downgrade", f"{name}=1") == f"{name} is at level 1\n"
    assert _level(run, name) == 1
    refused = run(
        "quotas", "alter", "--entity", "user=a", "--set", "producer_byte_rate=5", status=EXIT_FAILED
    )
    assert f"quorumlog features upgrade {name}=2" in refused
    run("features", "upgrade", f"{name}=6")
    assert _level(run, name) == 6
    with SyncAdmin(cluster.bootstrap) as admin:
        assert admin.describe_acls(AclFilter()) == []
    assert "INVALID_UPDATE_VERSION" in run("features", "upgrade", "nothing=2", status=EXIT_FAILED)
    assert "a whole number" in run("features", "upgrade", f"{name}=x", status=EXIT_USAGE)


def _level(run: Run, name: str) -> int:
    found = run.json("features", "describe")["features"]
    return next(int(one["level"]) for one in found if one["name"] == name)
