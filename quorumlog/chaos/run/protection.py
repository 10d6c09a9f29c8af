"""The protection of the clusters that a run starts: as requested, and as its workload requires.

The clients of a run may do everything. So a cluster with users has a super user that can log in; a
run that names no users gets `admin`, with a random password or a certificate. Raises
InvalidArgument.
"""

import os
from collections.abc import Mapping
from typing import Any, Final, cast

from quorumlog.chaos.faults.links import OF_REQUESTS
from quorumlog.chaos.faults.registry import STEP_FAULTS
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.chaos.workloads.workload import RequiredSecurity
from quorumlog.cluster.errors import InvalidArgument
from quorumlog.cluster.security import (
    OAUTHBEARER,
    PRINCIPAL,
    ClusterSecurity,
    SecurityOptions,
    read_options,
    require_types,
)

_ADMIN: Final = "admin"
_ANONYMOUS: Final = "ANONYMOUS"
_PASSWORD_BYTES: Final = 16


def protection_of(workload: str, given: SecurityOptions) -> SecurityOptions:
    """Return the options that protect the cluster of a run; empty: it is open.

    Raises InvalidArgument for options that have a wrong type, that contradict each other or the
    workload, or under which the clients of the run may not do everything.
    """
    require_types(given)
    options = cast(SecurityOptions, {name: value for name, value in given.items() if value})
    found = find_workload(workload)
    if found.security is not None:
        _add_required(options, workload, found.security)
    if not options:
        return options
    if not options.get("users") and _has_logins(options):
        options["users"] = {_first_super_user(options): _password(options)}
    security, users = read_options(options)
    if security is not None:
        _check_may_do_everything(security, users)
        if found.is_mirrored and security.mechanism == OAUTHBEARER:
            raise InvalidArgument(
                f"--sasl {OAUTHBEARER}: workload {workload} passes its login to the processes of"
                " mirrors, and a source of tokens cannot be passed; choose another mechanism"
            )
    return options


def own_faults(workload: str, given: SecurityOptions) -> tuple[str, ...]:
    """Return the faults of a run that names none: the workload's, without encrypted requests.

    Forwarders hold no key, so under TLS no fault reads a request.
    """
    names = find_workload(workload).faults
    if not given.get("tls"):
        return names
    return tuple(name for name in names if not STEP_FAULTS[name].imposes & OF_REQUESTS)


def _add_required(options: SecurityOptions, workload: str, required: RequiredSecurity) -> None:
    """Add the options that a workload requires. Raises InvalidArgument if others are given."""
    mechanism = options.setdefault("sasl", required.mechanism)
    if mechanism is not None and mechanism.upper() != required.mechanism:
        raise InvalidArgument(
            f"--sasl {mechanism}: workload {workload} changes passwords of {required.mechanism}"
        )
    options["acls"] = True
    options.setdefault("super_users", [required.super_user])


def _has_logins(options: SecurityOptions) -> bool:
    """Return whether clients can show who they are, and it matters."""
    return bool(options.get("sasl")) or bool(options.get("tls") and options.get("acls"))


def _first_super_user(options: SecurityOptions) -> str:
    supers = options.get("super_users") or ()
    return next(iter([supers] if isinstance(supers, str) else supers), _ADMIN).removeprefix(
        PRINCIPAL
    )


def _password(options: SecurityOptions) -> str | None:
    """Return the password of the run's own user; None: a random one of the cluster, or none.

    OAUTHBEARER without passwords would have tokens that anybody can make.
    """
    is_issued = (options.get("sasl") or "").upper() == OAUTHBEARER
    return os.urandom(_PASSWORD_BYTES).hex() if is_issued else None


def _check_may_do_everything(security: ClusterSecurity, users: Mapping[str, Any]) -> None:
    if not security.acls:
        return
    supers = [one.removeprefix(PRINCIPAL) for one in security.super_users]
    if not users and _ANONYMOUS not in supers:
        raise InvalidArgument(
            "--acls: every client of the run is User:ANONYMOUS; add --sasl MECHANISM or --tls, or"
            f" --super-user {_ANONYMOUS}"
        )
    if users and not any(name in users for name in supers):
        raise InvalidArgument(
            f"--acls: the clients of the run need the login of a super user: add --user {supers[0]}"
        )
