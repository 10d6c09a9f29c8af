"""Every checker, by the model it checks: a new one is a file beside this one and a word here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from quorumlog.chaos.checkers import kafka_log
from quorumlog.chaos.checkers.checker import Checker

DEFAULT_MODEL: Final = kafka_log.CHECKER.model  # of a history that names none
CHECKERS: Final[Mapping[str, Checker]] = MappingProxyType(
    {module.CHECKER.model: module.CHECKER for module in (kafka_log,)}
)


def find_checker(model: str) -> Checker:
    """Return the checker of this model. Raises ValueError with the models there are."""
    if model not in CHECKERS:
        raise ValueError(f"no model is called {model!r}; there are {', '.join(CHECKERS)}")
    return CHECKERS[model]
