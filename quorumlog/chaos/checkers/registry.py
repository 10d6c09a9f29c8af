"""Every checker, by the model it checks: a new one is a file beside this one and a word here."""

from collections.abc import Mapping
from typing import Final

from quorumlog.chaos.checkers import group_log, kafka_log, list_offsets
from quorumlog.chaos.checkers.checker import Checker
from quorumlog.chaos.registered import registered

DEFAULT_MODEL: Final = kafka_log.CHECKER.model  # of a history that names none
CHECKERS: Final[Mapping[str, Checker]] = {
    module.CHECKER.model: module.CHECKER for module in (kafka_log, group_log, list_offsets)
}


def find_checker(model: str) -> Checker:
    """Return the checker of this model. Raises ValueError with the models there are."""
    return registered(CHECKERS, model, "model")
