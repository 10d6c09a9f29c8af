"""A control server over the nemesis of one test, for its programs in other languages."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from quorumlog.chaos.control.histories import Histories
from quorumlog.chaos.control.lab import Lab
from quorumlog.chaos.control.server import ControlServer
from quorumlog.client.sync.loop_thread import LoopThread
from quorumlog.cluster.control_server import HISTORIES_DIRECTORY
from quorumlog.testing.trial import Trial

if TYPE_CHECKING:
    from quorumlog.chaos.control.manual_nemesis import ManualNemesis
    from quorumlog.cluster import LocalCluster


class Control(NamedTuple):
    """The address of a control server; requests carry `Authorization: Bearer TOKEN`."""

    url: str
    token: str


@contextmanager
def served(cluster: "LocalCluster", nemesis: "ManualNemesis", trial: Trial) -> Iterator[Control]:
    """Serve the verbs of a test's nemesis; its acts are in the histories of all its clients."""
    histories = Histories(trial.store / HISTORIES_DIRECTORY, cluster.own_client)
    histories.heal = nemesis.heal_now
    token = secrets.token_urlsafe()
    server = ControlServer(Lab(cluster, nemesis, histories), token=token)
    loop = LoopThread.acquire(server)
    try:
        url = loop.run(server.start())
        trial.records.append(histories.note)
        yield Control(url, token)
    finally:
        loop.run(server.stop())
        loop.release(server)
        if histories.note in trial.records:
            trial.records.remove(histories.note)
        histories.close()
