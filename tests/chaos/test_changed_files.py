"""A file that was changed after it was written is an error, or the verdict stays what it was."""

import json
import random
from pathlib import Path

import pytest

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.history import HistoryError, HistoryWriter
from quorumlog.chaos.verify import verify_history
from tests.support.chaos.hand_made_histories import rows_of
from tests.support.chaos.random_histories import good
from tests.support.sizes import tries

FLIPS = 200


def said(verdict: Verdict) -> str:
    document = verdict.as_json()
    del document["seconds"]
    return json.dumps(document, sort_keys=True)


def write(directory: Path, *, whole: bool = True) -> Path:
    writer = HistoryWriter(directory, meta={"model": "kafka_log"})
    for row in rows_of(good(7, sends=30).ops):
        writer.write(row)
    if whole:
        return writer.close()
    writer._file.close()  # as after a SIGKILL: no end row
    return directory / "history.jsonl"


@pytest.mark.parametrize("name", ["history.parquet", "history.jsonl"])
def test_a_flipped_bit_never_gives_another_verdict(name: str, tmp_path: Path) -> None:
    write(tmp_path)
    file = tmp_path / "alone" / name
    file.parent.mkdir()
    whole = (tmp_path / name).read_bytes()
    file.write_bytes(whole)
    expected, rng, refused = said(verify_history(file, engine="local")), random.Random(1), 0
    assert '"valid": true' in expected
    for _ in range(tries(FLIPS)):
        bit = rng.randrange(8 * len(whole))
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        try:
            assert said(verify_history(file, engine="local")) == expected, bit
        except HistoryError:
            refused += 1
    assert refused > tries(FLIPS) / 2


@pytest.mark.parametrize("key", [b"quorumlog.sha256", b"quorumlog.cut_off", b"group_sha256"])
def test_what_a_parquet_file_says_of_itself_is_protected_too(key: bytes, tmp_path: Path) -> None:
    directory = tmp_path / "unfinished"
    lines = write(directory, whole=False)
    with lines.open("ab") as file:
        file.write(b'{"index":')
    from quorumlog.chaos.history.files import make_parquet

    parquet = make_parquet(directory)
    assert verify_history(parquet, engine="local").valid == "unknown"
    whole = parquet.read_bytes()
    assert key in whole
    parquet.write_bytes(whole.replace(key, key[:-1] + b"X"))
    with pytest.raises(HistoryError, match="not as it was written"):
        verify_history(parquet, engine="local")
