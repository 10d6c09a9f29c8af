"""The security of a local cluster: its options and its secret files.

    DIR/security/                  readable by its owner alone, as are all files in it
    DIR/security/passwords.json    the passwords of the users, and of the brokers
    DIR/security/ca.pem, ...       certificates of the nodes, and of users without a password

Every secured cluster has a listener INTERNAL on loopback: brokers authenticate there to each other,
and commands of the directory's owner to them, as `User:broker`, a super user with a random password
(docs/security.md). So the listeners for clients have exactly the requested mechanism, and the first
user needs no other user: docs/decisions/0064-secured-clusters.md. Raises InvalidArgument.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from quorumlog.cluster.errors import ClusterError, InvalidArgument
from quorumlog.cluster.files import write_private
from quorumlog.settings.tls import OPERATOR, node_role

if TYPE_CHECKING:
    from quorumlog.cluster.layout import ClusterSpec, NodeSpec

DIRECTORY: Final = "security"
INTERNAL: Final = "INTERNAL"
"""The name of the listener of the brokers."""
BROKER: Final = "broker"
"""The user name of the brokers, and of commands that read the cluster's directory."""
PLAIN: Final = "PLAIN"
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, *SCRAM, OAUTHBEARER)
_PASSWORDS: Final = "passwords.json"
_SECRETS: Final = ("password", "jaas.config", "keystore.key", "secret")
_CA: Final = "ca"
TOKEN_KEY: Final = "tokens.key"  # noqa: S105 - the name of a file; beside it, a node writes its public half
_DEFAULT_SUPER_USER: Final = "admin"
_PASSWORD_BYTES: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9._@+-]{1,200}")
_RESERVED: Final = re.compile(
    r"broker|ca|truststore|operator|node-[0-9]+|ANONYMOUS|.*\.keystore", re.IGNORECASE
)
PRINCIPAL: Final = "User:"
HIDDEN: Final = "[hidden]"
"""In place of a secret in printed texts."""


class SecurityOptions(TypedDict, total=False):
    """The arguments of LocalCluster that protect a new cluster; `quorumlog up` has the same.

    `tls`: a CA and certificates of the cluster. `sasl`: a mechanism, by Kafka's name. `users`: name
    -> password; None: a random one, or with `tls` alone a certificate. `acls`: requests need ACLs,
    except those of `super_users` (names), by default `admin`.
    """

    tls: bool
    sasl: str | None
    users: Mapping[str, str | None] | None
    acls: bool
    super_users: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSecurity:
    """The protection of a cluster. Recorded in cluster.json: it has no secret.

    `super_users`: principals, such as `User:admin`; `User:broker` is always one. `has_issuer`: the
    nodes issue signed tokens of OAUTHBEARER to users, for their passwords; else tokens have no
    signature, and anybody can make one.
    """

    tls: bool = False
    mechanism: str | None = None
    acls: bool = False
    super_users: tuple[str, ...] = ()
    has_issuer: bool = False

    @property
    def credential(self) -> str | None:
        """The mechanism of the SCRAM credentials of its users; None: they have none."""
        if self.has_issuer:
            return SCRAM[0]
        return self.mechanism if self.mechanism in SCRAM else None

    @property
    def protocol(self) -> str:
        """The security protocol of the listeners for clients: Kafka's name."""
        if self.mechanism is not None:
            return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"
        return "SSL" if self.tls else "PLAINTEXT"

    @property
    def internal_protocol(self) -> str:
        """The security protocol of the listener INTERNAL."""
        return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"

    @property
    def has_certificates(self) -> bool:
        """Whether users authenticate by certificates."""
        return self.tls and self.mechanism is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Passwords:
    """The secrets of a cluster. A user without a password has a certificate."""

    broker: str = field(repr=False)
    users: Mapping[str, str | None] = field(repr=False)


def read_options(options: SecurityOptions) -> tuple[ClusterSecurity | None, dict[str, str | None]]:
    """Return the requested protection, None for none, and the users with their passwords.

    Raises InvalidArgument for options of a wrong type, or that do not fit together.
    """
    require_types(options)
    tls, acls = bool(options.get("tls")), bool(options.get("acls"))
    mechanism = _mechanism(options.get("sasl"))
    users = dict(options.get("users") or {})
    named = options.get("super_users") or ()
    supers = (named,) if isinstance(named, str) else tuple(named)
    _check_names(users, [one.removeprefix(PRINCIPAL) for one in supers])
    if mechanism is not None and not users:
        raise InvalidArgument(f"--sasl {mechanism}: name its users, as --user alice=PASSWORD")
    if users and mechanism is None and not tls:
        raise InvalidArgument(
            "--user: a user authenticates by --sasl MECHANISM, or by a certificate with --tls"
        )
    if supers and not acls:
        raise InvalidArgument("--super-user: without --acls every user may do everything")
    for name, password in users.items():
        users[name] = _password(name, password, mechanism)
    if not (tls or acls or mechanism):
        return None, {}
    if tls or mechanism == OAUTHBEARER:
        _require_extra()
    principals = [PRINCIPAL + one.removeprefix(PRINCIPAL) for one in supers]
    if acls and not principals:
        principals = [PRINCIPAL + _DEFAULT_SUPER_USER]
    security = ClusterSecurity(
        tls=tls,
        mechanism=mechanism,
        acls=acls,
        super_users=tuple(principals),
        has_issuer=mechanism == OAUTHBEARER and _has_issuer(users),
    )
    return security, users


def require_types(options: SecurityOptions) -> None:
    """Raise InvalidArgument for an option of a wrong type; the error shows no value of `users`."""
    users, supers = options.get("users"), options.get("super_users")
    for name in ("tls", "acls"):
        if not isinstance(options.get(name), bool | None):
            raise InvalidArgument(f"{name}={options.get(name)!r}: it is True or False")
    if not isinstance(options.get("sasl"), str | None):
        raise InvalidArgument(f"sasl={options.get('sasl')!r}: it is the name of a mechanism")
    if users is not None and not (
        isinstance(users, Mapping)
        and all(isinstance(name, str) for name in users)
        and all(isinstance(password, str | None) for password in users.values())
    ):
        raise InvalidArgument(
            "users: a dict of names and passwords is expected, as {'alice': None}"
        )
    listed = [] if supers is None or isinstance(supers, str) else supers
    if not isinstance(listed, Sequence) or not all(isinstance(one, str) for one in listed):
        raise InvalidArgument(f"super_users={supers!r}: it is a list of names")


def _has_issuer(users: Mapping[str, str | None]) -> bool:
    """Return whether the users of OAUTHBEARER have passwords, for which they receive tokens."""
    count = sum(password is not None for password in users.values())
    if 0 < count < len(users):
        raise InvalidArgument("--sasl OAUTHBEARER: give all of its users a password, or none")
    return count > 0


def _mechanism(text: str | None) -> str | None:
    if not text:
        return None
    name = text.upper()
    if name not in MECHANISMS:
        raise InvalidArgument(f"--sasl {text}: the mechanisms are {', '.join(MECHANISMS)}")
    return name


def _check_names(users: Iterable[str], super_users: Iterable[str]) -> None:
    for name in (*users, *super_users):
        if _NAME.fullmatch(name) is None:
            raise InvalidArgument(f"--user {name!r}: a name has letters, digits and . _ @ + -")
    for name in users:
        if _RESERVED.fullmatch(name):
            raise InvalidArgument(
                f"--user {name}: the name is the cluster's own; choose another one"
            )


def _password(name: str, password: str | None, mechanism: str | None) -> str | None:
    """Return the password of a user, a random one if none is given; None: it needs none."""
    if mechanism is None and "+" in name:  # escaped in it: a+b and a+c would be one user
        raise InvalidArgument(f"--user {name}: the name in a certificate must have no +")
    if mechanism is None and password is not None:
        raise InvalidArgument(
            f"--user {name}: without --sasl it has a certificate, so leave its password out"
        )
    if password is None and mechanism in {None, OAUTHBEARER}:
        return None
    if password is None:
        return os.urandom(_PASSWORD_BYTES).hex()
    if not password.isprintable() or password.strip() not in {password} - {""}:
        why = "is empty, has a control character, or a space at an end, which librdkafka drops"
        raise InvalidArgument(f"--user {name}: its password {why}")
    return password


def _require_extra() -> None:
    from quorumlog import extras

    if lack := extras.why_no_packages(
        "TLS and signed tokens need", ("cryptography", "trustme", "joserfc"), "security"
    ):
        raise InvalidArgument(lack)


def require_kept(
    recorded: ClusterSecurity | None, options: SecurityOptions
) -> dict[str, str | None]:
    """Return the users to add to an existing cluster; refuse another protection.

    Options that are not given keep the recorded ones. Raises InvalidArgument.
    """
    require_types(options)
    given = {name: value for name, value in options.items() if value}
    if not given:
        return {}
    keep = "leave it out, or choose another --dir"
    if recorded is None:
        raise InvalidArgument(
            f"--{_option(next(iter(given)))}: the cluster has no security; {keep}"
        )
    mechanism = _mechanism(options.get("sasl")) or recorded.mechanism
    supers = options.get("super_users") or recorded.super_users
    asked: SecurityOptions = {
        "tls": recorded.tls,
        "sasl": mechanism,
        "acls": recorded.acls,
        "users": options.get("users") or {"any": "any" if recorded.has_issuer else None},
        "super_users": supers if recorded.acls else (),
    }
    same, users = read_options(asked)
    for name in ("tls", "acls"):
        if given.get(name) and not getattr(recorded, name):
            raise InvalidArgument(f"--{name}: the cluster has no such protection; {keep}")
    if same != recorded:
        what = "--sasl" if mechanism != recorded.mechanism else "--super-user"
        raise InvalidArgument(f"{what}: the cluster in this directory has another one; {keep}")
    return users if options.get("users") else {}


def _option(name: str) -> str:
    return {"users": "user", "super_users": "super-user"}.get(name, name)


def read_recorded(document: Mapping[str, Any] | None) -> ClusterSecurity | None:
    """Read the protection in cluster.json. Raises TypeError, KeyError."""
    if document is None:
        return None
    return ClusterSecurity(**{**document, "super_users": tuple(document["super_users"])})


def may_be_secret(config: Mapping[str, str]) -> bool:
    """Return whether a setting of a cluster may hold a password or a key."""
    return any(name.endswith(_SECRETS) for name in config)


def shown_config(config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a cluster as they may be recorded or printed."""
    return {
        name: HIDDEN if may_be_secret({name: value}) else value for name, value in config.items()
    }


# --- files ---


def security_directory(directory: Path) -> Path:
    """Return the absolute directory of a cluster's secrets."""
    return (directory / DIRECTORY).resolve()


def passwords(directory: Path) -> Passwords:
    """Return the recorded secrets of a cluster. Raises ClusterError."""
    path = security_directory(directory) / _PASSWORDS
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Passwords(broker=str(document["broker"]), users=dict(document["users"]))
    except OSError as error:
        raise ClusterError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{path} is damaged ({error}); restore it") from error


def has_files(directory: Path) -> bool:
    """Return whether the secrets of a cluster are there."""
    return (security_directory(directory) / _PASSWORDS).exists()


def make_files(directory: Path, spec: "ClusterSpec", users: Mapping[str, str | None]) -> None:
    """Create the missing secrets and certificates of a cluster, and those of new users.

    Raises OSError, ClusterError.
    """
    security = spec.security
    if security is None:
        return
    place = security_directory(directory)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = passwords(directory) if has_files(directory) else None
    if security.tls:
        _make_certificates(place, spec, users)
    if security.has_issuer and users:  # brokers read the public half at their start
        from quorumlog.node.token_issuer import read_or_make_key

        read_or_make_key(place / TOKEN_KEY)
    if kept is None or users:
        broker = os.urandom(_PASSWORD_BYTES).hex() if kept is None else kept.broker
        known = {} if kept is None else kept.users
        _write_passwords(directory, broker, {**known, **users})


def _write_passwords(directory: Path, broker: str, users: Mapping[str, str | None]) -> None:
    text = json.dumps({"broker": broker, "users": users}, indent=2) + "\n"
    write_private(security_directory(directory) / _PASSWORDS, text)


def _make_certificates(place: Path, spec: "ClusterSpec", users: Mapping[str, str | None]) -> None:
    from quorumlog.cluster.certificates import Issued, make_ca

    authority = make_ca(place)
    wanted: dict[str, Callable[[], Issued]] = {OPERATOR: authority.issue_operator}
    for node in spec.nodes:
        wanted[node_role(node.id)] = partial(authority.issue_node, node.id, _hosts(node))
    if spec.security is not None and spec.security.has_certificates:
        wanted |= {name: partial(authority.issue, name) for name in users}
    for name, issue in wanted.items():
        if not keystore(place, name).exists():
            issued = issue()
            both = issued.key.read_text() + issued.certificate.read_text()
            write_private(keystore(place, name), both)


def _hosts(node: "NodeSpec") -> list[str]:
    """Return the hosts by which clients may name a node, besides those of every certificate."""
    from quorumlog.addresses import EVERYWHERE, host_and_port

    addresses = [node.kafka, node.control, *(one.advertised for one in node.listeners)]
    if node.advertised is not None:
        addresses.append(node.advertised)
    hosts = {host_and_port(address)[0] for address in addresses}
    return sorted(hosts - EVERYWHERE)


def keystore(place: Path, name: str) -> Path:
    """Return the file with the key of a name and its certificate, for Java: PEM."""
    return place / f"{name}.keystore.pem"


def ca_file(directory: Path) -> Path:
    """Return the file of the cluster's CA: PEM."""
    return security_directory(directory) / f"{_CA}.pem"


@contextmanager
def rehearsed(directory: Path, spec: "ClusterSpec") -> Iterator[Path]:
    """Yield a directory with the secrets of a cluster: a temporary one if they do not exist yet.

    Settings are checked with it before any file of the cluster is written.
    """
    if spec.security is None or has_files(directory):
        yield directory
        return
    place = Path(tempfile.mkdtemp(prefix="quorumlog-check-"))
    try:
        make_files(place, spec, {})
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


# --- users ---


def add_users(directory: Path, spec: "ClusterSpec", users: Mapping[str, str | None]) -> None:
    """Record users that an existing cluster gets. Raises ClusterError."""
    try:
        make_files(directory, spec, users)
    except OSError as error:
        raise ClusterError(f"cannot write {error.filename}: {error.strerror}") from error


def record_password(directory: Path, name: str, password: str | None) -> None:
    """Record a user's password; None removes the user. Raises OSError, ClusterError."""
    kept = passwords(directory)
    users = {one: text for one, text in {**kept.users, name: password}.items() if text is not None}
    _write_passwords(directory, kept.broker, users)


def plant_users(
    directory: Path, spec: "ClusterSpec", users: Mapping[str, str | None], client: Mapping[str, Any]
) -> None:
    """Create the SCRAM credentials of users in the cluster: of all if it was never ready.

    `client`: arguments of an Admin that may do so. Raises ClusterError.
    """
    security = spec.security
    if security is None or security.credential is None:
        return
    wanted = users if spec.was_ready else passwords(directory).users
    if not wanted:
        return
    from quorumlog.client import KafkaError, NewScramCredential
    from quorumlog.client.sync import SyncAdmin

    credentials = [
        NewScramCredential(user=name, password=text or "", mechanism=security.credential)
        for name, text in wanted.items()
    ]
    try:
        with SyncAdmin(**client) as admin:
            admin.alter_user_scram_credentials(credentials)
    except KafkaError as error:
        raise ClusterError(f"the users are not created: {error}; start again") from error


def user_names(directory: Path, spec: "ClusterSpec") -> frozenset[str]:
    """Return the names of the users that the cluster was started with. Raises ClusterError."""
    return frozenset() if spec.security is None else frozenset(passwords(directory).users)


def default_user(directory: Path, security: ClusterSecurity) -> str | None:
    """Return the user of clients that name none: the first super user, else the first user."""
    users = passwords(directory).users
    supers = (one.removeprefix(PRINCIPAL) for one in security.super_users)
    return next((name for name in supers if name in users), next(iter(users), None))
