"""`tools.kill_rounds`: what proves nothing, and what the topics beside the workload must hold."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from quorumlog.client import TopicPartition
from tools import kill_rounds
from tools.round_work import Journal, Logs

AT = TopicPartition("retained", 0)


def journal(*, is_compacted: bool = False) -> Journal:
    """Numbers 0 to 15 were acknowledged at the offsets 0 to 15: 0 and 12 have the same key."""
    made = Journal(is_compacted=is_compacted)
    made.acknowledged.update({(AT, number): number for number in range(16)})
    return made


def logs(numbers: Iterable[int], *, start: int = 0, end: int = 1_000) -> Logs:
    """Return a log that has these numbers, each at the offset of its name."""
    return Logs({(AT, number): number for number in numbers}, {AT: start}, {AT: end})


def test_each_acknowledged_record_is_there_from_the_log_start_on() -> None:
    assert not [*journal().findings(logs(range(16)))]
    assert not [*journal().findings(logs(range(4, 16), start=4))]
    [what] = journal().findings(logs({*range(4, 16)} - {9}, start=4))
    assert what == "retained-0 has lost number 9, acknowledged at 9"


def test_a_record_is_there_once_and_at_its_place() -> None:
    whole = logs(range(16))
    twice = whole._replace(numbers={**whole.numbers, (AT, 16): 3})
    assert [*journal().findings(twice)] == ["number 3 is there twice"]
    moved = whole._replace(numbers={**whole.numbers, (AT, 15): 99})
    [what] = journal().findings(moved)
    assert what == "retained-0 has number 99 at 15, and not 15"


def test_of_a_compacted_topic_a_newer_record_of_the_key_may_be_there() -> None:
    compacted = journal(is_compacted=True)
    assert not [*compacted.findings(logs(range(4, 16)))]
    [what] = compacted.findings(logs(range(5, 16)))
    assert what == "retained-0 has lost number 4, acknowledged at 4"
    [what] = compacted.findings(logs(range(4, 16), start=4))
    assert what == "retained-0 starts at 4 and ends at 1000: too much was removed"


def test_a_log_starts_where_retention_and_the_requests_leave_it() -> None:
    short = logs(range(14, 16), start=14, end=16)
    [what] = journal().findings(short)
    assert what == "retained-0 starts at 14 and ends at 16: too much was removed"
    asked = journal()
    asked.deleted[AT] = 14
    assert not [*asked.findings(short)]


@pytest.mark.parametrize("lacking", kill_rounds.NEEDED)
def test_a_round_in_which_something_did_not_happen_proves_nothing(lacking: str) -> None:
    counts = dict.fromkeys(kill_rounds.NEEDED, 1)
    noted: dict[str, Any] = {"seed": 1, "valid": True, "why": [], "counts": counts}
    assert kill_rounds.judged(noted, [])["valid"] is True
    counts[lacking] = 0
    judged = kill_rounds.judged(noted, [])
    assert (judged["valid"], judged["why"]) == ("no proof", [f"there was no {lacking}"])
    found = kill_rounds.judged({**noted, "why": ["late"]}, ["lost"])
    assert (found["valid"], found["why"]) == (False, ["late", "lost"])
    assert kill_rounds.judged({**noted, "valid": "unknown"}, [])["valid"] == "unknown"


def test_the_kills_of_nodes_are_counted() -> None:
    rows = [
        {"format": 1},
        {"process": -1, "f": "kill", "node": "1"},
        {"process": -1, "f": "kill", "node": "1,2,3"},
        {"process": -1, "f": "start", "node": "1"},
        {"process": 0, "f": "kill", "node": "2"},  # a client's row
    ]
    assert kill_rounds.killed("\n".join(map(json.dumps, rows))) == 4


def test_a_round_follows_from_its_seed(tmp_path: Path) -> None:
    rounds = [kill_rounds.settings_of(seed, tmp_path) for seed in range(3)]
    assert [one.workload for one in rounds] == [*kill_rounds.WORKLOADS]
    assert all(one.faults == kill_rounds.FAULTS for one in rounds)
    assert rounds[1].config["log.segment.bytes"] == "4000"
