"""Each import contract is kept, and finds a violation that is planted in the graph of imports."""

from copy import deepcopy
from functools import cache
from pathlib import Path

import grimp
import pytest
from importlinter import configuration
from importlinter.application.use_cases import read_user_options
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.independence import IndependenceContract
from importlinter.contracts.layers import LayersContract
from importlinter.domain.contract import Contract

ROOT = Path(__file__).parent.parent
TYPES: dict[str, type[Contract]] = {
    "forbidden": ForbiddenContract,
    "independence": IndependenceContract,
    "layers": LayersContract,
}
Imports = list[tuple[str, str]]  # importer and imported; without a dot: of another package
CLOCK = ("quorumlog.storage.clock", "time")
# Contract number, imports that break it. A module that is not there yet is added.
PLANTS: list[tuple[int, Imports]] = [
    (1, [("quorumlog.storage", "quorumlog.broker")]),
    (1, [("quorumlog.stray", "quorumlog.wire")]),  # no layer is its place
    (1, [("quorumlog.chaos", "quorumlog.testing")]),
    (1, [("quorumlog.testing", "quorumlog.cli")]),
    (2, [("quorumlog.broker", "quorumlog.client")]),
    (3, [("quorumlog.chaos.faults", "quorumlog.broker.partitions.core")]),
    (3, [("quorumlog.chaos.run.run", "quorumlog.storage")]),
    (3, [("quorumlog.chaos.stray", "quorumlog.metadata_quorum.core")]),
    (4, [("quorumlog.broker.server", "quorumlog.metadata_quorum.core")]),
    (5, [("quorumlog.broker.groups.core", "asyncio")]),
    (5, [("quorumlog.chaos.schedule", "random")]),
    (5, [("quorumlog.chaos.faults.kill", "os")]),
    (5, [("quorumlog.broker.groups.core", CLOCK[0]), CLOCK]),
    (6, [("quorumlog.storage.core", "random")]),
    (6, [("quorumlog.broker.partitions.log", "quorumlog.broker.deadline_timer")]),
    (7, [("quorumlog.broker.partitions", "quorumlog.broker.server")]),
    (7, [("quorumlog.broker.stray", "quorumlog.wire")]),
    (8, [("quorumlog.client.settings", "quorumlog.client.core")]),
    (9, [("quorumlog.chaos.simulation.kernel", "asyncio")]),
    (9, [("quorumlog.chaos.simulation.worlds", "quorumlog.wire.io")]),
    (9, [("quorumlog.chaos.simulation.running", "quorumlog.broker.fetching.io")]),
    (10, [("quorumlog.chaos.simulation.worlds.quorum.world", "random")]),
    (10, [("quorumlog.chaos.simulation.running", "time")]),
    (11, [("quorumlog.broker.handlers.fetch", "quorumlog.broker.handlers.produce")]),
    (11, [("quorumlog.broker.handlers.fetch", "quorumlog.broker.handlers.registry")]),
    (12, [("quorumlog.client.io.cluster", "random")]),
    (12, [("quorumlog.broker.replicas", "secrets")]),
    (12, [("quorumlog.metadata_quorum.io.peer_liveness", "time")]),
    (13, [("quorumlog.mirror.io", "quorumlog.storage")]),
]


@cache
def contracts() -> dict[int, Contract]:
    """By their numbers, with which their names begin."""
    configuration.configure()
    options = read_user_options(str(ROOT / "pyproject.toml"))
    found = [
        TYPES[one["type"]](one["name"], options.session_options, one)
        for one in options.contracts_options
    ]
    return {int(contract.name.partition(".")[0]): contract for contract in found}


@cache
def imports_of_today() -> grimp.ImportGraph:
    return grimp.build_graph("quorumlog", include_external_packages=True, cache_dir=None)


def is_kept(number: int, planted: Imports) -> bool:
    graph = deepcopy(imports_of_today())
    for importer, imported in planted:
        for module in (importer, imported):
            if module not in graph.modules:
                graph.add_module(module, is_squashed="." not in module)
        graph.add_import(importer=importer, imported=imported)
    return contracts()[number].check(graph, verbose=False).kept


def test_every_contract_is_kept_and_has_a_violation_below() -> None:
    assert sorted(contracts()) == sorted({number for number, _ in PLANTS})
    assert all(is_kept(number, []) for number in contracts())


@pytest.mark.parametrize(("number", "planted"), PLANTS)
def test_a_planted_import_is_reported(number: int, planted: Imports) -> None:
    assert not is_kept(number, planted)
