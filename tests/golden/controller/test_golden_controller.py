"""Stories of the active controller, as golden scripts (`tests.support.golden`).

`create 0,1,2 isr=0,1 name=value ...` makes partition t-0 with replicas and settings; `die`,
`reboot`, `restart` and `new_disk` say what becomes of a broker; `report 0:100 1:80!` that the log
of broker 0 is whole up to offset 100, and that of broker 1 damaged at 80. The output is the
partition.
"""

from pathlib import Path

import pytest

from quorumlog.metadata_quorum.cluster_changes import ConfigChange
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
from tests.support import golden
from tests.support.metadata_quorum.controllers import Bench, topic


class Script:
    """Brokers 0, 1 and 2; each change of a process or a machine has a number of its own."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.processes = 0
        for broker_id in range(3):
            self.start(broker_id, boot="b")

    def start(self, broker_id: int, *, boot: str, directory: str = "") -> None:
        self.processes += 1
        incarnation = f"process {self.processes}"
        self.bench.register(broker_id, incarnation, boot=boot, directory=directory)
        self.bench.heartbeat(broker_id)

    def run(self, command: str) -> str:
        name, *words = command.split()
        given = dict(word.split("=") for word in words if "=" in word)
        numbers = [word for word in words if "=" not in word]
        answer = ""
        match name:
            case "create":
                self.create([int(one) for one in numbers[0].split(",")], given)
            case "set":
                changes = [ConfigChange(name=key, value=value) for key, value in given.items()]
                assert self.bench.alter("t", *changes).error_code is ErrorCode.NONE
            case "elect":
                [result] = self.bench.elect(("t", 0), unclean=numbers == ["unclean"])
                answer = f"{result.error_code.name}\n"
            case "join":
                for number in numbers:
                    self.bench.join_isr(int(number))
            case "report":
                for one in numbers:
                    number, end = one.split(":")
                    self.bench.report(int(number), int(end.rstrip("!")), whole=end.isdecimal())
            case _:
                for number in numbers:
                    self.happens(name, int(number))
        return answer + shown(self.bench.partition())

    def create(self, replicas: list[int], given: dict[str, str]) -> None:
        """Make the partition; replicas that are not in `isr` were away, and left it."""
        isr = {int(one) for one in given.pop("isr").split(",")}
        self.bench.create(topic("t", *replicas, **given))
        for broker_id in {*replicas} - isr:
            self.happens("die", broker_id)
            self.happens("restart", broker_id)

    def happens(self, what: str, broker_id: int) -> None:
        """Let a process die, or start again: as it was, after a reboot, with an empty directory."""
        match what:
            case "die":
                self.bench.die(broker_id)
            case "restart":
                broker = self.bench.controller.cluster.brokers[BrokerId(broker_id)]
                self.start(
                    broker_id, boot=broker.boot_id or "", directory=broker.directory_id or ""
                )
            case "reboot":
                self.start(broker_id, boot=f"boot {self.processes}")
            case "new_disk":
                self.start(broker_id, boot="b", directory=f"directory {self.processes}")
            case _:
                raise AssertionError(what)


def shown(partition: PartitionImage) -> str:
    state = f"leader={partition.leader_id} epoch={partition.leader_epoch}"
    state += f" isr={many(partition.isr)} elr={many(partition.elr)}"
    if partition.last_known_leader >= 0:
        state += f" last_known_leader={partition.last_known_leader}"
    if partition.last_known_elr:
        state += f" last_known_elr={many(partition.last_known_elr)}"
    return state + (" recovering" if partition.is_recovering else "")


def many(brokers: tuple[BrokerId, ...]) -> str:
    return ",".join(map(str, brokers)) or "-"


@golden.scripts_beside(__file__)
def test_the_story_is_as_it_was(script: Path, request: pytest.FixtureRequest) -> None:
    golden.check(script, Script().run, request)
