"""wire_rules: raw clients use the whole protocol, and its rules judge the responses.

The lab's other clients are polite: they leave no gap in a sequence, read without a fetch session,
send in the newest version and with acks=all. The raw clients (`rude_clients`) draw, by the seed:
bursts of pipelined batches with acks 0, 1 and all, in all versions and compression types; repeats,
gaps and old epochs of producers; keys, headers and timestamps; fetch sessions that add and forget
partitions; lookups in two versions, old and invented leader epochs, offsets of a group.

A history holds, beside the sends and reads of a log (a send with acks 0 or 1 has an unknown
outcome), operations `wire_...` with the requests and responses (checkers/wire/facts.py). Their
checker is `wire_rules`. The driver makes the topic and reads the log, too: as a polite client.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from quorumlog.chaos.rude_clients.crowd import Crowd
from quorumlog.chaos.rude_clients.final_reader import FinalReader
from quorumlog.chaos.rude_clients.prober import Prober
from quorumlog.chaos.rude_clients.raw_client import RawClient, RunNumbers
from quorumlog.chaos.rude_clients.raw_producer import RawProducer
from quorumlog.chaos.rude_clients.session_reader import SessionReader
from quorumlog.chaos.workloads.readers import Readers
from quorumlog.chaos.workloads.workload import (
    LaneOptions,
    Setup,
    Topic,
    Workload,
    one_topic,
    option,
)

_KEPT: Final = {"retention.ms": "-1"}  # the timestamps of the records lie around the year 2001
_TIMES: Final = 2  # more partitions than nodes, so that a fetch session has several
ClientT = TypeVar("ClientT", bound=RawClient)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRulesOptions(LaneOptions):
    """The number of clients, and the rates of records and of questions."""

    rate: float = option(200.0, "records a second of all producers, while brokers answer")
    producers: int = option(3, "raw clients that send bursts")
    crowds: int = option(1, "raw clients that send many batches at once", above=-1)
    consumers: int = option(1, "polite clients that read during the run", above=-1)
    final_readers: int = option(1, "polite clients that read everything at the end")
    sessions: int = option(2, "raw clients that read in fetch sessions", above=-1)
    probers: int = option(2, "raw clients that send lookups", above=-1)
    questions: float = option(60.0, "fetches and lookups a second of each of these clients")


class WireRules:
    """The clients of one run."""

    def __init__(self, setup: Setup[WireRulesOptions]) -> None:
        setup = replace(setup, partitions=_TIMES * setup.partitions)
        self._setup: Final = setup
        self._numbers: Final = RunNumbers()
        self._readers: Final = Readers(setup)
        self._security: Final = setup.security.connection_security()

    def _client(self, kind: type[ClientT], name: str) -> ClientT:
        setup = self._setup
        return kind(
            bootstrap=setup.bootstrap,
            topic=setup.topic,
            partitions=setup.partitions,
            rng=setup.rng(name),
            history=setup.history,
            numbers=self._numbers,
            security=self._security,
        )

    async def work(self, working: asyncio.Event) -> None:
        """Send and read until `working` is cleared."""
        options = self._setup.options
        gap_s = (options.producers + options.crowds) / options.rate
        question_s = 1 / options.questions
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._readers.work(working))
            for lane in range(options.producers):
                producer = self._client(RawProducer, f"producer {lane}")
                tasks.create_task(producer.run(working, gap_s))
            for lane in range(options.crowds):
                crowd = self._client(Crowd, f"crowd {lane}")
                tasks.create_task(crowd.run(working, gap_s))
            for lane in range(options.sessions):
                reader = self._client(SessionReader, f"session {lane}")
                tasks.create_task(reader.run(working, question_s))
            for lane in range(options.probers):
                prober = self._client(Prober, f"prober {lane}")
                tasks.create_task(prober.run(working, question_s))

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every partition to its end, by polite readers and by a raw client."""
        raw = self._client(FinalReader, "final reader")
        results = await asyncio.gather(self._readers.final_reads(timeout_s), raw.run(timeout_s))
        return all(results)


def _topics(setup: Setup[Any]) -> tuple[Topic, ...]:
    return one_topic(replace(setup, partitions=_TIMES * setup.partitions), _KEPT)


WORKLOAD: Final = Workload(
    name="wire_rules",
    text="raw clients send gaps, repeats, old versions and epochs, and read in fetch sessions",
    options=WireRulesOptions,
    clients=WireRules,
    topics=_topics,
    model="wire_rules",
    dense=True,
)
