"""How long a check waits for executors: of which settings."""

from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.chaos.checking.spark.executors import TIMEOUT_KEY, TIMEOUT_S, _timeout_s

pytest.importorskip("pyspark")


def context_of(**conf: str) -> Any:
    return SimpleNamespace(getConf=lambda: conf)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_the_settings_of_a_session_count_for_its_own_context_only(
    monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """PySpark keeps a session whose context was stopped, and that is not the next context's."""
    context = context_of(**{TIMEOUT_KEY: "3"})
    kept = SimpleNamespace(
        sparkContext=context_of() if is_stopped else context, conf={TIMEOUT_KEY: "5"}
    )
    monkeypatch.setattr("pyspark.sql.SparkSession._instantiatedSession", kept)
    assert _timeout_s(context) == (3.0 if is_stopped else 5.0)


def test_a_context_without_a_setting_waits_as_long_as_is_documented(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession._instantiatedSession", None)
    assert _timeout_s(context_of()) == TIMEOUT_S
