"""However keys and values are printed, a history is the same, or in doubt; and never another."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from quorumlog.chaos.history import HistoryError, read_history
from quorumlog.chaos.history.edn import Keyword, write_form
from tests.support.sizes import tries

Event = tuple[int, str, str, Any, Any]  # process, type, f, key, value


def some_events(rng: random.Random, keys: list[Any]) -> list[Event]:
    """Draw operations on registers, sets, locks or lists, each of one key."""
    workload = rng.choice(["register", "cas", "set", "mutex", "txn"])
    events: list[Event] = []
    for number in range(rng.randint(1, 6)):
        key, type_ = rng.choice(keys), rng.choice(["ok", "ok", "ok", "info", "fail"])
        f, asked, answered = some_operation(rng, workload, number)
        events.append((number, "invoke", f, key, asked))
        events.append((number, type_, f, key, answered if type_ == "ok" else asked))
    return events


def some_operation(rng: random.Random, workload: str, number: int) -> tuple[str, Any, Any]:
    """Return f, the value asked for, and the value that is answered."""
    reads = rng.random() < 0.5
    match workload:
        case "mutex":
            return rng.choice(["acquire", "release"]), None, None
        case "txn":
            append = [Keyword("append"), Keyword("x"), number]
            read = [Keyword("r"), Keyword("x")]
            return "txn", [append, [*read, None]], [append, [*read, [number]]]
        case "set":
            return ("read", None, [1, 2][: rng.randint(0, 2)]) if reads else ("add", number, number)
        case "cas" if rng.random() < 0.4:
            values = [rng.randint(0, 2), rng.randint(0, 2)]
            return "cas", values, values
        case _:
            value = rng.choice([number, number, [number, 1], "x"])
            return ("read", None, value) if reads else ("write", value, value)


def table_of(file: Path, events: list[Event], form: str, **options: Any) -> pa.Table:
    rows = []
    for process, type_, f, key, value in events:
        row = {"process": process, "type": Keyword(type_), "f": Keyword(f), "value": value}
        if form == "key":
            row["key"] = key
        elif form != "plain":
            row["value"] = [key, value]
        rows.append({Keyword(name): one for name, one in row.items()})
    lines = [write_form(row) for row in rows]
    if form == "tuple":
        marker = write_form(Keyword("value"))
        lines = [
            line.replace(f"{marker} [", f"{marker} #jepsen.independent.Tuple [", 1)
            for line in lines
        ]
    file.write_text("\n".join(lines))
    return read_history(file, **options)


def table_unless_in_doubt(file: Path, events: list[Event], form: str) -> pa.Table | None:
    try:
        return table_of(file, events, form)
    except HistoryError as error:
        if "--pairs" not in str(error):
            raise
        return None


def test_keys_are_apart_in_each_form_or_the_form_is_in_doubt(tmp_path: Path) -> None:
    file, certain, doubtful = tmp_path / "history.edn", 0, 0
    for seed in range(tries(600)):
        rng = random.Random(seed)
        events = some_events(rng, rng.choice([[0, 1], ["a", "b"], [5]]))
        expected = table_of(file, events, "key")
        assert table_of(file, events, "tuple").equals(expected), (seed, events)
        assert table_of(file, events, "pairs", pairs="keys").equals(expected), (seed, events)
        found = table_unless_in_doubt(file, events, "pairs")
        assert found is None or found.equals(expected), (seed, events)
        certain, doubtful = certain + (found is not None), doubtful + (found is None)
    assert certain > tries(600) // 2
    assert doubtful > tries(600) // 50


def test_values_without_keys_are_never_taken_apart(tmp_path: Path) -> None:
    file, certain, doubtful = tmp_path / "history.edn", 0, 0
    for seed in range(tries(600)):
        events = some_events(random.Random(seed), [None])
        expected = table_of(file, events, "plain", pairs="values")
        found = table_unless_in_doubt(file, events, "plain")
        assert found is None or found.equals(expected), (seed, events)
        certain, doubtful = certain + (found is not None), doubtful + (found is None)
    assert certain > tries(600) * 3 // 4
    assert doubtful > 0
