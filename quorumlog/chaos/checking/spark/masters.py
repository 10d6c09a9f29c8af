"""Spark masters: whether a text names one, whether it listens, and how it reaches this driver."""

import re
import socket
from typing import Final

from quorumlog.chaos.checking.spark import SparkUnavailable

CONNECT_TIMEOUT_S: Final = 5.0
_STANDALONE: Final = "spark://"
_LOOPBACK: Final = "127.0.0.1"
_OTHERS: Final = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[[\d,]+\]|yarn|k8s://.+")


def check_master(master: str) -> None:
    """Check that `master` names a Spark master, and that a standalone one listens.

    Raises ValueError with the valid forms, and SparkUnavailable. Spark itself fails only after a
    minute and a half of attempts.
    """
    if _OTHERS.fullmatch(master):
        return
    if not master.startswith(_STANDALONE):
        raise ValueError(
            f"--master {master}: write local[*], local[2], spark://host:port, yarn or k8s://..."
        )
    reasons = []
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError(f"--master {master}: write it as spark://host:port[,host:port]")
        try:
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise SparkUnavailable(f"no Spark master listens: {'; '.join(reasons)}")


def is_here(master: str) -> bool:
    """Return whether everything of this master runs on this machine."""
    return master.startswith("local")


def is_one_process(master: str) -> bool:
    """Return whether tasks of this master are children of this process, and not of executors.

    `local-cluster[...]`, with which Spark tests itself, has executors.
    """
    return is_here(master) and not master.startswith("local-cluster")


def driver_host(master: str) -> str | None:
    """Return the local address at which the executors of `master` can reach this driver.

    It is the source address of the route to a standalone master. None: Spark finds it itself.
    """
    if is_here(master):
        return _LOOPBACK
    if not master.startswith(_STANDALONE):
        return None
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        try:
            (family, kind, *_, place), *_ = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_DGRAM
            )
            with socket.socket(family, kind) as probe:
                probe.connect(place)  # a datagram socket: it sends no packet
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None
