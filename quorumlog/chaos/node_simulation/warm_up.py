"""Work to do once before the forks of runs: imports, and the functions that codecs compile.

Forked processes inherit the results, which halves the cost of a short run.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from quorumlog.wire.codec.decoder import decoder_for
from quorumlog.wire.codec.encoder import encoder_for
from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.schemas import request_class, response_class

_MODULES: Final = ("quorumlog.chaos.drivers.client_driver", "quorumlog.chaos.node_simulation.run")
_APIS: Final = (
    "Produce", "Fetch", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch",
    "FindCoordinator", "JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup", "ApiVersions",
    "CreateTopics", "InitProducerId", "OffsetForLeaderEpoch",
)  # fmt: skip


@cache
def warm_up() -> None:
    """Import the modules of a run and compile the codecs, once in this process."""
    for module in _MODULES:
        import_module(module)
    for api_key, api in APIS.items():
        if api.name in _APIS:
            for found in (request_class(api_key), response_class(api_key)):
                version = api.versions[-1]
                encoder_for(found, version)
                decoder_for(found, version)
    _judge_a_history()


def _judge_a_history() -> None:
    """Write, read and check a history without client operations: pyarrow loads parts late."""
    from quorumlog.chaos.checkers import check_history
    from quorumlog.chaos.history import NEMESIS, HistoryWriter, read_history

    with TemporaryDirectory() as directory:
        with HistoryWriter(Path(directory)) as history:
            history.append(NEMESIS, "info", "heal")
        check_history(read_history(directory))
