"""The protection of a cluster: its options, its secret files, and the properties of its nodes."""

import json
import re
import ssl
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from quorumlog.broker.authentication.certificate_principals import CertificatePrincipals
from quorumlog.cluster import ClusterError, InvalidArgument, LocalCluster, layout, security
from quorumlog.cluster.security import ClusterSecurity, SecurityOptions
from quorumlog.node import config
from quorumlog.settings.listeners import SecurityProtocol

SECRET = 's3cret, with "quotes" and \\ = ü'
BOTH = ("broker", "controller")
END = "-----END CERTIFICATE-----\n"
SCRAM: SecurityOptions = {
    "tls": True,
    "sasl": "scram-sha-512",
    "users": {"alice": SECRET, "admin": "x"},
    "acls": True,
}


def _made(directory: Path, options: SecurityOptions, nodes: int = 2) -> LocalCluster:
    """Return a cluster whose files are written; no process runs."""
    cluster = LocalCluster(directory, nodes=nodes, **options)
    secured, users = security.read_options(options)
    assert cluster.spec.security == secured
    layout.found(directory, cluster.spec, users)
    layout.save(directory, cluster.spec)
    return cluster


def _properties(directory: Path, node_id: int) -> dict[str, str]:
    return config.read_properties(layout.properties_file(directory, node_id))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sasl": "scram"}, "--sasl scram: the mechanisms are PLAIN, SCRAM-SHA-256"),
        ({"sasl": "plain"}, "--sasl PLAIN: name its users"),
        ({"users": {"alice": "x"}}, "--user: a user authenticates by --sasl MECHANISM"),
        ({"tls": True, "users": {"alice": "x"}}, "it has a certificate, so leave its password"),
        ({"super_users": ["admin"]}, "--super-user: without --acls every user may do everything"),
        ({"sasl": "plain", "users": {"broker": "x"}}, "the name is the cluster's own"),
        ({"tls": True, "users": {"node-1": None}}, "the name is the cluster's own"),
        ({"tls": True, "users": {"alice.keystore": None}}, "the name is the cluster's own"),
        ({"tls": True, "users": {"a+b": None}}, "the name in a certificate must have no [+]"),
        ({"tls": True, "users": {"../a": None}}, "a name has letters"),
        ({"acls": True, "super_users": ["a;User:b"]}, "a name has letters"),
        ({"sasl": "plain", "users": {"a": ""}}, "its password is empty"),
        ({"sasl": "oauthbearer", "users": {"a": "x", "b": None}}, "a password, or none"),
        ({"sasl": "plain", "users": {"a": "x\nsuper.users=User:a"}}, "a control character"),
        ({"sasl": "plain", "users": {"a": " x"}}, "a space at an end"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    options: SecurityOptions, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message.replace(".", r"\.")):
        security.read_options(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tls": "no"}, "tls='no': it is True or False"),
        ({"acls": 1}, "acls=1: it is True or False"),
        ({"sasl": 5}, "sasl=5: it is the name of a mechanism"),
        ({"sasl": "plain", "users": "alice"}, "users: a dict of names and passwords"),
        ({"sasl": "plain", "users": ["alice"]}, "users: a dict of names and passwords"),
        ({"sasl": "plain", "users": {"alice": 5}}, "users: a dict of names and passwords"),
        ({"sasl": "plain", "users": {5: "secret"}}, "users: a dict of names and passwords"),
        ({"acls": True, "super_users": 5}, "super_users=5: it is a list of names"),
        ({"acls": True, "super_users": [5]}, "super_users=[5]: it is a list of names"),
    ],
)
def test_options_of_a_wrong_type_are_refused(options: dict[str, Any], message: str) -> None:
    given = cast(SecurityOptions, options)
    for refused_by in (security.read_options, partial(security.require_kept, ClusterSecurity())):
        with pytest.raises(InvalidArgument, match=re.escape(message)) as refused:
            refused_by(given)
        assert "secret" not in str(refused.value)


def test_a_user_without_password_gets_a_random_one() -> None:
    _, users = security.read_options({"sasl": "plain", "users": {"alice": None, "bob": None}})
    assert len({*users.values()}) == 2
    assert all(one and len(one) == 32 for one in users.values())


@pytest.mark.parametrize(
    ("tls", "sasl", "protocol"),
    [
        (False, None, "PLAINTEXT"),
        (True, None, "SSL"),
        (False, "PLAIN", "SASL_PLAINTEXT"),
        (True, "OAUTHBEARER", "SASL_SSL"),
        (True, "OAUTHBEARER of an issuer", "SASL_SSL"),
    ],
)
@pytest.mark.parametrize("acls", [False, True])
def test_each_protection_is_a_configuration_that_a_node_accepts(
    tmp_path: Path, tls: bool, sasl: str | None, protocol: str, acls: bool
) -> None:
    if not (tls or sasl or acls):
        assert LocalCluster(tmp_path).spec.security is None
        return
    sasl, issuer, _ = (sasl or "").partition(" of an issuer")
    users = {"alice": "one" if sasl == "PLAIN" or issuer else None} if sasl else {}
    options: SecurityOptions = {"tls": tls, "sasl": sasl, "users": users, "acls": acls}
    _made(tmp_path, options)
    for node_id in (1, 2):
        built = config.build(_properties(tmp_path, node_id)).listeners
        assert [*built.by_name] == [protocol, security.INTERNAL]
        assert built.by_name[protocol].protocol is SecurityProtocol[protocol]
        assert built.inter_broker.name == security.INTERNAL
        assert built.inter_broker.protocol.name.startswith("SASL_")
        assert built.inter_broker.bind.host == "127.0.0.1"


def test_further_listeners_have_the_same_protection(tmp_path: Path) -> None:
    cluster = LocalCluster(
        tmp_path,
        nodes=1,
        host="0.0.0.0",
        advertised="kafka.example",
        listeners=["OUT://::1"],
        **SCRAM,
    )
    _, users = security.read_options(SCRAM)
    layout.found(tmp_path, cluster.spec, users)
    layout.save(tmp_path, cluster.spec)
    built = config.build(_properties(tmp_path, 1)).listeners
    out = built.by_name["OUT"]
    assert out.protocol is SecurityProtocol.SASL_SSL
    assert out.sasl is not None
    assert [*out.sasl.mechanisms] == ["SCRAM-SHA-512"]
    assert built.inter_broker.bind.host == "127.0.0.1"  # not on all interfaces
    for name in ("INTERNAL", "SASL_SSL"):
        with pytest.raises(InvalidArgument, match="a listener of this name"):
            LocalCluster(tmp_path / "b", listeners=[f"{name}://127.0.0.1"], **SCRAM)


def test_the_users_of_plain_are_read_from_the_properties_as_they_were_given(tmp_path: Path) -> None:
    _made(tmp_path, {"sasl": "plain", "users": {"alice": SECRET, "bob": "x"}}, nodes=1)
    sasl = config.build(_properties(tmp_path, 1)).listeners.by_name["SASL_PLAINTEXT"].sasl
    assert sasl is not None
    assert dict(sasl.mechanisms["PLAIN"].users) == {"alice": SECRET, "bob": "x"}


def test_secrets_are_in_files_of_their_owner_alone(tmp_path: Path) -> None:
    cluster = _made(tmp_path, {"sasl": "plain", "tls": True, "users": {"alice": "hunter2-alice"}})
    broker = security.passwords(tmp_path).broker
    holders = set()
    for path in tmp_path.rglob("*"):
        is_private = stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
        if path.is_dir() or is_private:
            continue
        text = path.read_text(errors="replace")
        if "hunter2-alice" in text or broker in text or "PRIVATE KEY" in text:
            holders.add(path.name)
    assert not holders
    recorded = json.loads((tmp_path / "cluster.json").read_text())
    assert recorded["security"]["mechanism"] == "PLAIN"
    for private in ("security", "node-1"):  # in the latter, also the credentials of SCRAM
        assert stat.S_IMODE((tmp_path / private).stat().st_mode) == 0o700
    assert "hunter2" not in repr(cluster.spec) + repr(security.passwords(tmp_path))


def test_each_character_of_a_name_makes_another_principal_of_a_certificate(tmp_path: Path) -> None:
    """Otherwise two users would share their rights."""
    others = [one for one in map(chr, range(32, 127)) if not one.isalnum()]
    names = [f"a{character}b" for character in [*others, "Z", "9"]]
    accepted: dict[str, None] = {}
    for name in names:
        with suppress(InvalidArgument):
            security.read_options({"tls": True, "users": {name: None}})
            accepted[name] = None
    _made(tmp_path, {"tls": True, "users": accepted}, nodes=1)
    rules = config.build(_properties(tmp_path, 1)).listeners.by_name["SSL"].tls
    assert rules is not None
    principals = CertificatePrincipals(rules.principal_rules)
    for name in accepted:
        pem = (tmp_path / "security" / f"{name}.pem").read_text()
        first = pem[: pem.index(END) + len(END)]
        assert principals.principal_of(ssl.PEM_cert_to_DER_cert(first)) == f"User:{name}"
    assert [*accepted] == ["a-b", "a.b", "a@b", "a_b", "aZb", "a9b"]


def test_a_plain_cluster_has_the_files_and_modes_of_before(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, nodes=1)
    layout.found(tmp_path, cluster.spec)
    layout.save(tmp_path, cluster.spec)
    recorded = json.loads((tmp_path / "cluster.json").read_text())
    assert "security" not in recorded
    assert {"protocol", "internal"}.isdisjoint(recorded["nodes"][0])
    assert not (tmp_path / "security").exists()
    mode = layout.properties_file(tmp_path, 1).stat().st_mode
    assert mode == (tmp_path / "cluster.json").stat().st_mode
    layout.save(tmp_path / "b", layout.plan([BOTH], host="::1", port=0, config={"a.password": "b"}))
    assert stat.S_IMODE((tmp_path / "b/cluster.json").stat().st_mode) == 0o600


def test_an_existing_cluster_keeps_its_protection_and_takes_users(tmp_path: Path) -> None:
    _made(tmp_path, SCRAM)
    recorded = layout.load(tmp_path).security
    assert recorded == ClusterSecurity(
        tls=True, mechanism="SCRAM-SHA-512", acls=True, super_users=("User:admin",)
    )
    assert security.require_kept(recorded, {}) == {}
    assert security.require_kept(recorded, {"tls": True, "users": {"bob": "y"}}) == {"bob": "y"}
    assert security.require_kept(recorded, {"super_users": ["admin"]}) == {}
    refused: list[tuple[ClusterSecurity | None, Any, str]] = [
        (None, {"tls": True}, "the cluster has no security"),
        (recorded, {"sasl": "plain"}, "--sasl: the cluster in this directory has another one"),
        (recorded, {"super_users": ["bob"]}, "--super-user: the cluster in this directory"),
        (ClusterSecurity(tls=True), {"acls": True}, "--acls: the cluster has no such protection"),
    ]
    for kept, options, message in refused:
        with pytest.raises(InvalidArgument, match=message):
            security.require_kept(kept, options)


def test_a_new_user_is_recorded_beside_the_others(tmp_path: Path) -> None:
    cluster = _made(tmp_path, SCRAM)
    broker = security.passwords(tmp_path).broker
    certificate = (tmp_path / "security/node-1.pem").read_text()
    security.add_users(tmp_path, cluster.spec, {"bob": "y", "admin": "z"})
    kept = security.passwords(tmp_path)
    assert kept.users == {"alice": SECRET, "admin": "z", "bob": "y"}
    assert kept.broker == broker
    assert (tmp_path / "security/node-1.pem").read_text() == certificate


def test_a_check_before_the_start_leaves_no_file(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "new", **SCRAM)
    cluster.check()
    assert not (tmp_path / "new").exists()


def test_a_damaged_file_of_passwords_is_named(tmp_path: Path) -> None:
    _made(tmp_path, SCRAM)
    file = tmp_path / "security/passwords.json"
    file.write_text("{}")
    with pytest.raises(ClusterError, match=r"passwords\.json is damaged"):
        security.passwords(tmp_path)
    file.unlink()
    with pytest.raises(ClusterError, match=r"cannot read .*passwords\.json"):
        security.passwords(tmp_path)
