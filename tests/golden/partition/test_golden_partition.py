"""Stories of one replica, as golden scripts (`tests.support.golden`).

`<now_ms> <Event> name=value ...`; the output is effects and state. The log is in memory: what
the effects order it to do is done. `append` and `receive` stand for what a driver does around the
core.
"""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from tests.support import golden
from tests.support.broker.replicas import Replica, broker, image

EVENTS: Final[dict[str, Any]] = {event.__name__: event for event in get_args(events.Event)}


class Script:
    """Broker 1's replica, with an empty log."""

    def __init__(self) -> None:
        self.replica = Replica(BrokerId(1))
        self.brokers = {BrokerId(who): broker(BrokerId(who)) for who in (1, 2, 3)}

    def run(self, command: str) -> str:
        at, name, *words = command.split()
        now_ms = int(at)
        values = {key: parse(text) for key, text in (word.split("=") for word in words)}
        match name:
            case "append":
                count = values["count"]
                effects = self.replica.append(now_ms, [0] * count)
            case "receive":  # the answer to our fetch: `count` records of `epoch`
                effects = self.receive(now_ms, **values)
            case "broker":
                who = BrokerId(values.pop("id"))
                self.brokers[who] = broker(who, **values)
                effects = self.step(now_ms, "BrokersPublished", {"brokers": dict(self.brokers)})
            case "PartitionPublished":
                min_isr = values.pop("min_insync_replicas", 1)
                published = {
                    "image": image(**values),
                    "brokers": dict(self.brokers),
                    "min_insync_replicas": min_isr,
                }
                effects = self.step(now_ms, name, published)
            case _:
                effects = self.step(now_ms, name, values)
        return "\n".join([*map(render, effects), self.state()])

    def step(self, now_ms: int, name: str, values: dict[str, Any]) -> list[Effect]:
        if "error_code" in values:
            values["error_code"] = ErrorCode[values["error_code"]]
        if name == "FollowerFetched":
            unknown = {"broker_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1}
            values = {**unknown, **values}
        return self.replica.step(now_ms, EVENTS[name](**values))

    def receive(self, now_ms: int, count: int, epoch: int, high_watermark: int) -> list[Effect]:
        self.replica.log.append([(epoch, 0)] * count)
        answered = events.LeaderAnswered(
            leader_epoch=self.replica.partition.state.leader_epoch,
            log_end_offset=Offset(len(self.replica.log.records)),
            high_watermark=Offset(high_watermark),
            log_start_offset=Offset(0),
        )
        return self.replica.step(now_ms, answered)

    def state(self) -> str:
        partition = self.replica.partition
        role = partition.state.role
        state = partition.state
        shown = f"= {type(role).__name__} leader_epoch={state.leader_epoch}"
        shown += f" high_watermark={state.high_watermark} end={state.log_end_offset}"
        if isinstance(role, Leader):
            shown += f" isr={members(role.isr)}"
            if role.maximal_isr != role.isr:
                shown += f" maximal_isr={members(role.maximal_isr)}"
        return shown


def members(isr: frozenset[BrokerId]) -> str:
    return ",".join(map(str, sorted(isr)))


def parse(text: str) -> Any:
    """Read a number, a name, or a tuple written as `1,2` or `1,`."""
    if "," in text:
        return tuple(int(part) for part in text.split(",") if part)
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def render(effect: Effect) -> str:
    pairs = [(field.name, getattr(effect, field.name)) for field in fields(effect)]
    shown = [f"{name}={getattr(value, 'name', value)}" for name, value in pairs]
    return " ".join([type(effect).__name__, *(re.sub(" ", "", text) for text in shown)])


@golden.scripts_beside(__file__)
def test_script(script: Path, request: pytest.FixtureRequest) -> None:
    golden.check(script, Script().run, request)
