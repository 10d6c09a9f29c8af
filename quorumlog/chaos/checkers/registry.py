"""Every checker, by its model, and the check of a history by one of them.

A new checker is a file beside this one and an entry here.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers import (
    bank,
    counter,
    group_log,
    kafka_log,
    list_append,
    list_offsets,
    rw_register,
    sets,
    topic_lives,
)
from quorumlog.chaos.checkers.calls import frozen
from quorumlog.chaos.checkers.checker import Checker, facts_of
from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.fault_phase import fault_phase_of
from quorumlog.chaos.checkers.linearizable import linearizable
from quorumlog.chaos.checkers.models import MODELS, Register, TopicName
from quorumlog.chaos.checkers.transactions import TXN
from quorumlog.chaos.checkers.verdict import Verdict
from quorumlog.chaos.history.model import NEMESIS, HistoryError
from quorumlog.chaos.registered import registered

DEFAULT_MODEL: Final = kafka_log.CHECKER.model  # of a history that names none
CHECKERS: Final[Mapping[str, Checker]] = {
    checker.model: checker
    for checker in (
        kafka_log.CHECKER,
        group_log.CHECKER,
        list_offsets.CHECKER,
        topic_lives.CHECKER,
        *(linearizable(model) for model in MODELS.values()),
        sets.SET,
        sets.SET_FULL,
        counter.CHECKER,
        bank.CHECKER,
        linearizable(TopicName()),
        list_append.CHECKER,
        rw_register.CHECKER,
    )
}


def find_checker(model: str) -> Checker:
    """Return the checker of this model.

    `model` is a name; `package.module:NAME` of a model or a checker; or, of a register, a name and
    its first value as JSON: `cas-register=0`. Raises ValueError with the existing models, or with
    the reason why a module, a name or a value is not available.
    """
    name, has_initial, initial = model.partition("=")
    if has_initial:
        return _register(name, initial)
    return _own(model) if ":" in model else registered(CHECKERS, model, "model")


def _register(name: str, initial: str) -> Checker:
    registers = {name: known for name, known in MODELS.items() if isinstance(known, Register)}
    known = registered(registers, name, "register")
    try:
        value = frozen(json.loads(initial))
    except ValueError as error:
        raise ValueError(f"the first value {initial!r} is not JSON: {error}") from error
    return linearizable(replace(known, initial=value))


def _own(model: str) -> Checker:
    module, _, name = model.partition(":")
    try:
        own: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no model {model}: {error}") from error
    if isinstance(own, Checker):
        return own
    members = ("name", "operations", "reads", "initial", "step")
    if missing := [member for member in members if not hasattr(own, member)]:
        raise ValueError(f"{model} is no model: it has no {', '.join(missing)}")
    return linearizable(own)


def check_history(table: pa.Table, model: str | Checker = DEFAULT_MODEL) -> Verdict:
    """Check a table of history.schema.OPERATIONS. Raises ValueError for an unknown model."""
    checker = find_checker(model) if isinstance(model, str) else model
    facts = facts_of(table.schema.metadata)
    partial = checker.check(checker.explode(table), facts)
    verdict = checker.conclude([partial], fault_bands(table), facts)
    return verdict.with_fault_phase(fault_phase_of(table))


_KAFKA_MICRO: Final = frozenset({"send", "poll"})


def guess_model(table: pa.Table) -> str:
    """Return the model of a table of history.schema.OPERATIONS that names none, if only one fits.

    Operations of Kafka's clients are checked as a log. Operations that fit several other models, or
    no model, raise HistoryError with the models' names: a history is never checked by a model that
    only happens to accept it.
    """
    clients = table.filter(pc.not_equal(table.column("process"), NEMESIS))
    fs = frozenset(pc.unique(clients.column("f")).to_pylist())
    micros: frozenset[str] = frozenset()
    if TXN in fs:
        transactions = clients.filter(pc.equal(clients.column("f"), TXN)).column("micro")
        flat = pc.list_flatten(transactions)
        micros = frozenset(pc.unique(pc.struct_field(flat, "f")).to_pylist())
    if not fs or (TXN in fs and micros and micros <= _KAFKA_MICRO):
        return DEFAULT_MODEL
    fits = [
        name
        for name, checker in CHECKERS.items()
        if fs <= checker.operations and micros <= checker.micros
    ]
    if DEFAULT_MODEL in fits:  # workloads name the narrower models of a log themselves
        return DEFAULT_MODEL
    # A model with operations that this history lacks gives way to one without them.
    fits = [
        name
        for name in fits
        if not any(CHECKERS[other].operations < CHECKERS[name].operations for other in fits)
    ]
    if len(fits) == 1:
        return fits[0]
    said = ", ".join(sorted((fs - {TXN}) | micros))
    if fits:
        raise HistoryError(
            f"its operations ({said}) fit several models: choose one of {', '.join(fits)} "
            "with --model"
        )
    raise HistoryError(f"no model has the operations {said}; the models are {', '.join(CHECKERS)}")
