"""The protection of the clusters that runs start: options, workloads, and secrets."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from quorumlog.chaos.run.protection import own_faults, protection_of
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings, meta_at_start
from quorumlog.chaos.schedule import Schedule
from quorumlog.cluster import InvalidArgument
from quorumlog.cluster.security import SecurityOptions, read_options
from quorumlog.testing.marks import ChaosMark

SECRET = "hunter2-of-admin"


def protected(workload: str = "append_read", **given: Any) -> SecurityOptions:
    return protection_of(workload, cast(SecurityOptions, given))


def test_a_run_without_protection_has_an_open_cluster() -> None:
    assert protected(tls=False, sasl=None, users={}, acls=False, super_users=()) == {}
    assert protected(tls=True) == {"tls": True}  # its clients are anonymous, and may do everything


@pytest.mark.parametrize("sasl", ["plain", "scram-sha-256", "SCRAM-SHA-512"])
def test_a_run_that_names_no_user_has_an_administrator(sasl: str) -> None:
    options = protected(sasl=sasl, acls=True)
    assert options["users"] == {"admin": None}  # a random password
    assert protected(sasl=sasl, acls=True, super_users=["User:root"])["users"] == {"root": None}
    assert protected(tls=True, acls=True)["users"] == {"admin": None}  # a certificate


def test_tokens_of_the_own_user_are_signed() -> None:
    options = protected(sasl="oauthbearer")
    security, users = read_options(options)
    assert security is not None
    assert security.has_issuer
    assert len(users["admin"] or "") == 32
    assert protected(sasl="oauthbearer")["users"] != options["users"]  # random


def test_the_protection_that_a_workload_requires_is_added() -> None:
    assert protected("authorized") == {
        "sasl": "SCRAM-SHA-256",
        "acls": True,
        "super_users": ["admin"],
        "users": {"admin": None},
    }
    more = protected("authorized", tls=True, users={"root": SECRET}, super_users=["root"])
    assert more["tls"]
    assert more["users"] == {"root": SECRET}


@pytest.mark.parametrize(
    ("workload", "given", "why"),
    [
        ("append_read", {"acls": True}, "every client of the run is User:ANONYMOUS"),
        ("append_read", {"sasl": "digest"}, "--sasl digest: the mechanisms are PLAIN"),
        (
            "append_read",
            {"sasl": "plain", "users": {"alice": "a"}, "acls": True},
            "need the login of a super user: add --user admin",
        ),
        (
            "append_read",
            {"tls": True, "users": {"alice": None}, "acls": True, "super_users": ["root"]},
            "add --user root",
        ),
        ("append_read", {"users": {"alice": "a"}}, "--user: a user authenticates by --sasl"),
        ("authorized", {"sasl": "scram-sha-512"}, "changes passwords of SCRAM-SHA-256"),
        ("mirror", {"sasl": "oauthbearer"}, "a source of tokens cannot be passed"),
    ],
)
def test_a_protection_under_which_the_run_cannot_work_is_refused(
    workload: str, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        protected(workload, **given)


def test_the_own_faults_of_a_workload_need_no_requests_under_tls() -> None:
    assert own_faults("idempotent_send", {}) == ("kill", "pause_kill", "ack_kill")
    assert own_faults("idempotent_send", {"tls": True}) == ("kill", "pause_kill")


def test_anonymous_clients_may_be_super_users() -> None:
    assert "users" not in protected(acls=True, super_users=["ANONYMOUS"])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"bootstrap": "h:1", "faults": ()}, "give the login at --bootstrap by --command-config"),
        ({"record_responses": True}, "forwarders cannot read responses under --tls"),
        ({"faults": ("reply_lost",)}, "use a cluster without --tls"),
        ({"network": "netns"}, "--network netns: a secured cluster is on loopback"),
    ],
)
def test_runs_that_tls_rules_out_are_refused_before_the_start(
    tmp_path: Path, given: dict[str, Any], why: str
) -> None:
    out = tmp_path / "run"
    settings = RunSettings(out=out, protection={"tls": True}, **given)
    with pytest.raises(ValueError, match=why):
        run(settings, lambda *_: None)
    assert not out.exists()


def test_no_secret_is_in_the_settings_that_are_shown_or_recorded(tmp_path: Path) -> None:
    settings = RunSettings(
        out=tmp_path, protection={"sasl": "plain", "users": {"admin": SECRET}, "acls": True}
    )
    schedule = Schedule(seed=0, duration_us=1)
    meta = meta_at_start(settings, schedule)
    assert meta["security"]["acls"]
    assert SECRET not in repr(settings) + json.dumps(meta)


def test_the_mark_of_a_test_has_the_same_options() -> None:
    security: SecurityOptions = {
        "tls": True,
        "sasl": "SCRAM-SHA-256",
        "users": {"admin": SECRET, "alice": None},
        "acls": True,
        "super_users": "admin",
    }
    mark = ChaosMark(security=security, config={"a.password": SECRET})
    assert mark.settings(Path("run"), 1).protection == security
    assert SECRET not in repr(replace(mark, config={}))
    command = " ".join(mark.command(7))
    assert command.endswith(
        "--config a.password=[hidden] --tls --sasl SCRAM-SHA-256 --user admin=[hidden] --user alice"
        " --acls --super-user admin"
    )
    # The command is a run as well: its cluster has the hidden text as a password.
    users = {"admin": "[hidden]", "alice": None}
    assert protected(**cast(dict[str, Any], security) | {"users": users})["users"] == users
