"""Every checker, by the model it checks: a new one is a file beside this one and a word here."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from quorumlog.chaos.checkers import (
    bank,
    counter,
    group_log,
    kafka_log,
    list_append,
    list_offsets,
    rw_register,
    sets,
    topics,
)
from quorumlog.chaos.checkers.checker import Checker
from quorumlog.chaos.checkers.linearizable import linearizable
from quorumlog.chaos.checkers.models import MODELS
from quorumlog.chaos.registered import registered

DEFAULT_MODEL: Final = kafka_log.CHECKER.model  # of a history that names none
CHECKERS: Final[Mapping[str, Checker]] = {
    checker.model: checker
    for checker in (
        kafka_log.CHECKER,
        group_log.CHECKER,
        list_offsets.CHECKER,
        *(linearizable(model) for model in MODELS.values()),
        sets.SET,
        sets.SET_FULL,
        counter.CHECKER,
        bank.CHECKER,
        topics.CHECKER,
        list_append.CHECKER,
        rw_register.CHECKER,
    )
}


def find_checker(model: str) -> Checker:
    """Return the checker of this model: a name, or `package.module:NAME` of a model or a checker.

    Raises ValueError with the models there are, or why the module or the name cannot be had.
    """
    if ":" not in model:
        return registered(CHECKERS, model, "model")
    module, _, name = model.partition(":")
    try:
        own: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no model {model}: {error}") from error
    if isinstance(own, Checker):
        return own
    missing = [
        part
        for part in ("name", "operations", "reads", "initial", "step")
        if not hasattr(own, part)
    ]
    if missing:
        raise ValueError(f"{model} is no model: it has no {', '.join(missing)}")
    return linearizable(own)
