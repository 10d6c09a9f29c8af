"""Stories of offsets in transactions, as golden scripts (`tests.support.golden`).

    commit OFFSET                              OffsetCommit of a client that is no member
    txn PRODUCER OFFSET [MEMBER GENERATION]    TxnOffsetCommit
    verified [CODE]                            what the transaction coordinator says
    end PRODUCER commit|abort                  WriteTxnMarkers
    written [CODE]                             the outcome of the oldest write
    tick MS, delete group|offset|topic, failover

Each line of the output ends with what OffsetFetch shows; `unstable`: only to a client that does not
insist on stable offsets. Through the shard: all that is written is bytes.
"""

from pathlib import Path

import pytest

from quorumlog.broker.coordination.core.effects import AppendBatch
from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.records import decode
from quorumlog.broker.groups.core.requests import (
    CommitResult,
    DeleteGroup,
    DeleteOffsets,
    Request,
    TransactionalRequest,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import decode_batches
from quorumlog.wire.codec.transaction_markers import decode_marker
from tests.support import golden
from tests.support.groups.coordination import T0, Coordination, commit
from tests.support.groups.transactions import end, txn_commit, verify


class Story:
    def __init__(self) -> None:
        self.group = Coordination()
        self.told: set[int] = set()
        self.shown_writes = self.shown_questions = 0

    def run(self, command: str) -> str:
        what, *words = command.split()
        match what, words:
            case "verified", _:
                verify(self.group, ErrorCode[words[0] if words else "NONE"])
                self.shown_questions = 0
            case "written", _:
                self.group.end_write(ErrorCode[words[0] if words else "NONE"])
                self.shown_writes = min(self.shown_writes, len(self.group.writes))
            case "tick", [elapsed_ms]:
                self.group.tick(int(elapsed_ms))
            case "delete", ["topic"]:
                self.group.step(events.TopicsDeleted(topics=("t",)))
            case "failover", []:
                last_request_id = self.group.last_request_id
                self.group = self.group.reloaded()
                self.group.last_request_id = last_request_id
                self.shown_writes = self.shown_questions = 0
            case _:
                self.group.ask(self.request(what, words))
        return "\n".join([*self.news(), self.state()])

    def request(self, what: str, words: list[str]) -> Request | TransactionalRequest:
        match what, words:
            case "commit", [offset]:
                return commit(int(offset))
            case "txn", [producer, offset]:
                return txn_commit(int(offset), int(producer))
            case "txn", [producer, offset, member_id, generation_id]:
                generation = int(generation_id)
                return txn_commit(
                    int(offset), int(producer), member_id=member_id, generation_id=generation
                )
            case "end", [producer, how]:
                return end(int(producer), commits=how == "commit")
            case "delete", ["group"]:
                return DeleteGroup(group_id="g")
            case "delete", ["offset"]:
                return DeleteOffsets(group_id="g", partitions=(T0,))
            case _:
                raise ValueError(what)

    def news(self) -> list[str]:
        asked = self.group.own[self.shown_questions :]
        self.shown_questions = len(self.group.own)
        lines = ["asks the transaction coordinator" for _ in asked]
        lines += [f"writes {show(write)}" for write in self.group.writes[self.shown_writes :]]
        self.shown_writes = len(self.group.writes)
        for request_id, result in self.group.replies.items():
            if request_id not in self.told:
                self.told.add(request_id)
                is_commit = isinstance(result, CommitResult)
                code = result.partitions.get(T0, result.error_code) if is_commit else result
                lines.append(f"#{request_id} {code.name}")
        return lines

    def state(self) -> str:
        coordinator = self.group.coordinator
        offset = coordinator.fetch_offsets("g", [T0])[T0]
        unstable = " unstable" if T0 in coordinator.transactional.unstable("g") else ""
        known = "" if coordinator.known_groups() else " no group"
        return f"= {offset.offset if offset else 'none'}{unstable}{known}"


def show(write: AppendBatch) -> str:
    [(header, records)] = decode_batches(write.records)
    if header.is_control:
        marker = decode_marker(write.records)
        assert marker is not None
        return f"{'COMMIT' if marker.commits else 'ABORT'} of {marker.producer_id}"
    found = [decode(record.key or b"", record.value) for record in records]
    values = [getattr(one, "committed", None) for one in found]
    texts = [f"{one.offset}" if one else "a tombstone" for one in values]
    by = f" of {header.producer_id}" if header.is_transactional else ""
    return ", ".join(texts) + by


@golden.scripts_beside(__file__)
def test_story(script: Path, request: pytest.FixtureRequest) -> None:
    golden.check(script, Story().run, request)
