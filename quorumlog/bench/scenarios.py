"""The six scenarios as cells, with the figures that were published in 2017. Pure.

Source: the Kafka benchmark of vip.com, 2017: Kafka 0.10.1.0, four brokers of 24 cores and 62 GB, a
network of 4 Gb/s, one client with 1 Gb/s, one producer, records of 1 KB.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Literal

from quorumlog.bench.load import MODES, Acks, Mode

SCENARIOS: Final = (1, 2, 3, 4, 5, 6)
THROUGHPUTS: Final = (1, 2, 3, 4)
KILLS: Final = 5
LATENCY: Final = 6
RUNS: Final = 3
BROKERS: Final = 4
ONE_BY_ONE_SHARE: Final = 50
"""One by one, a cell sends a fiftieth of the messages: each waits for the last."""

TITLES: Final = {
    1: "acks, replicas and min.insync.replicas, 12 partitions",
    2: "Replicas and min.insync.replicas, 1 partition, acks=all",
    3: "acks and replicas, 1 partition",
    4: "Partitions, 2 replicas, acks=all",
    5: "Brokers are killed: 12 partitions, 4 replicas, min.insync.replicas 2, acks=all",
    6: "Latency: 12 partitions, 4 replicas, min.insync.replicas 2, acks=all",
}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """One row of a table of throughputs."""

    partitions: int
    replicas: int
    min_isr: int
    acks: Acks

    @property
    def name(self) -> str:
        """A text for people."""
        minimum = f", min ISR {self.min_isr}" if self.acks == "all" else ""
        count = f"{self.partitions} partition{'s' * (self.partitions > 1)}"
        copies = f"{self.replicas} replica{'s' * (self.replicas > 1)}"
        return f"{count}, {copies}, acks={self.acks}{minimum}"

    def as_json(self) -> dict[str, Any]:
        """Return its fields."""
        return {
            "partitions": self.partitions,
            "replicas": self.replicas,
            "min_isr": self.min_isr,
            "acks": self.acks,
        }


def _cells(partitions: int, acks: Acks, *pairs: tuple[int, int]) -> Iterable[Cell]:
    return (
        Cell(partitions=partitions, replicas=replicas, min_isr=min_isr, acks=acks)
        for replicas, min_isr in pairs
    )


_OF_2017: Final[dict[int, dict[Cell, int | None]]] = {
    1: {
        **dict(
            zip(
                _cells(12, "all", (1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)),
                (28_511, 22_360, 22_927, 16_194, 16_600, 16_680),
                strict=True,
            )
        ),
        **dict(zip(_cells(12, 0, (1, 1), (2, 1), (4, 1)), (45_354, 46_427, 46_764), strict=True)),
        **dict(zip(_cells(12, 1, (1, 1), (2, 1), (4, 1)), (33_950, 32_192, 32_276), strict=True)),
    },
    2: dict(
        zip(
            _cells(1, "all", (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2), (4, 4)),
            (9_739, 9_702, 9_000, 9_243, 9_006, 8_217, 9_092),
            strict=True,
        )
    ),
    3: {
        **dict(zip(_cells(1, 0, (1, 1), (2, 1), (4, 1)), (76_696, 57_503, 59_367), strict=True)),
        **dict(zip(_cells(1, 1, (1, 1), (2, 1), (4, 1)), (19_489, 20_404, 18_365), strict=True)),
        **dict(zip(_cells(1, "all", (1, 1), (2, 1), (4, 1)), (18_641, 9_739, 9_006), strict=True)),
    },
    4: {  # its figures were a picture
        Cell(partitions=partitions, replicas=2, min_isr=2, acks="all"): None
        for partitions in (1, 2, 4, 8, 12, 24, 48)
    },
}
LATENCY_2017: Final = {
    "producer": {"avg_ms": 1.715, "min_ms": 1, "max_ms": 157, "p99_ms": 3, "p99.99_ms": 29},
    "end_to_end": {"avg_ms": 1.646, "min_ms": 1, "max_ms": 288, "p99_ms": 4, "p99.99_ms": 72},
}


def cells_of(scenario: int) -> dict[Cell, int | None]:
    """Return the cells of a scenario of throughputs, with the messages/s of 2017 if published."""
    return _OF_2017[scenario]


@dataclass(frozen=True, slots=True, kw_only=True)
class KillCase:
    """One row of scenario 5: brokers are killed when a quarter of the messages is acknowledged.

    starts_again: the killed brokers start again; else after the load, for the comparison.
    tps_2017, found_2017: its figure and its errors; None, "": 2017 had no idempotence.
    """

    name: str
    kills: int
    starts_again: bool
    retries: int
    idempotent: bool = False
    tps_2017: int | None = None
    found_2017: str = ""


_FOREVER: Final = 100_000_000
KILL_CASES: Final = (
    KillCase(
        name="5a",
        kills=2,
        starts_again=False,
        retries=0,
        tps_2017=12_840,
        found_2017="NETWORK_EXCEPTION to the application; a part of the failed records is stored",
    ),
    KillCase(
        name="5b",
        kills=2,
        starts_again=False,
        retries=_FOREVER,
        tps_2017=13_870,
        found_2017="NETWORK_EXCEPTION, retried; duplicates",
    ),
    KillCase(
        name="5c",
        kills=3,
        starts_again=True,
        retries=_FOREVER,
        found_2017="NETWORK_EXCEPTION, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND; "
        "it stops, and resumes; duplicates",
    ),
    KillCase(name="5b, idempotent", kills=2, starts_again=False, retries=_FOREVER, idempotent=True),
    KillCase(name="5c, idempotent", kills=3, starts_again=True, retries=_FOREVER, idempotent=True),
)

ModeChoice = Literal["pipelined", "one-by-one", "both"]


def modes_of(choice: ModeChoice) -> Sequence[Mode]:
    """Return the modes to measure."""
    return MODES if choice == "both" else (choice,)


@dataclass(frozen=True, slots=True)
class Planned:
    """One run of a cell."""

    cell: Cell
    mode: Mode
    run: int


def runs_of(only: Collection[int], modes: Sequence[Mode], runs: int) -> list[Planned]:
    """Return the runs of scenarios 1 to 4: a cell that several scenarios have is run for all."""
    cells = sorted({cell for one in only if one in _OF_2017 for cell in _OF_2017[one]}, key=str)
    return [Planned(*one) for one in product(cells, modes, range(runs))]
