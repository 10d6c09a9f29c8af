"""The histories that `benchmarks.history_checks` writes are valid."""

from pathlib import Path

from benchmarks.history_checks import check, write_history, write_register


def test_the_histories_are_checked_and_valid(tmp_path: Path) -> None:
    log, register = tmp_path / "log.parquet", tmp_path / "register.parquet"
    write_history(log, 3_000, 3)
    write_register(register, 1_000)
    for file in (log, register):
        assert check(file, "local")["valid"] is True
