"""Every checker, by its model, and the check of a history by one of them.

A new checker is a file beside this one and an entry here. Other packages add checkers, and
sequential models, by entry points of the groups `quorumlog.checkers` and `quorumlog.models`.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers import (
    authorized,
    bank,
    counter,
    group_log,
    kafka_log,
    list_append,
    list_offsets,
    log_view,
    long_fork,
    mirror,
    multi_register,
    rw_register,
    sets,
    topic_lives,
)
from quorumlog.chaos.checkers.calls import frozen
from quorumlog.chaos.checkers.checker import Checker, Facts, facts_of
from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.fault_phase import fault_phase_of
from quorumlog.chaos.checkers.linearizable import linearizable
from quorumlog.chaos.checkers.models import MODELS, Register, TopicName
from quorumlog.chaos.checkers.transactions import SERIALIZABLE, TXN
from quorumlog.chaos.checkers.verdict import Verdict, joined
from quorumlog.chaos.checkers.wire import checker as wire_rules
from quorumlog.chaos.history.model import NEMESIS, HistoryError
from quorumlog.chaos.registered import AddedParts, registered

# Their histories have sends and final reads, too.
_OF_LOGS: Final = (
    group_log.CHECKER,
    list_offsets.CHECKER,
    wire_rules.CHECKER,
    authorized.CHECKER,
    mirror.CHECKER,
)
DEFAULT_MODEL: Final = kafka_log.CHECKER.model  # of a history that names none
CHECKERS: Final[Mapping[str, Checker]] = {
    checker.model: checker
    for checker in (
        kafka_log.CHECKER,
        group_log.CHECKER,
        list_offsets.CHECKER,
        topic_lives.CHECKER,
        wire_rules.CHECKER,
        authorized.CHECKER,
        mirror.CHECKER,
        *(linearizable(model) for model in MODELS.values()),
        sets.SET,
        sets.SET_FULL,
        counter.CHECKER,
        bank.CHECKER,
        linearizable(TopicName()),
        list_append.CHECKER,
        rw_register.CHECKER,
        long_fork.CHECKER,
        multi_register.multi_register(),
    )
}
CONSISTENCIES: Final[Mapping[str, Mapping[str, Checker]]] = {
    one.CHECKER.model: {
        SERIALIZABLE: one.CHECKER,
        **{other.model.partition("=")[2]: other for other in one.OTHERS},
    }
    for one in (list_append, rw_register)
}
"""The checkers of transactions, by their model and the consistency that they require."""


def _checker_of(name: str, own: Any) -> Checker:
    """Return an object of another package as a checker. Raises ValueError if it is no model."""
    if isinstance(own, Checker):
        return own
    members = ("name", "operations", "reads", "initial", "step")
    if missing := [member for member in members if not hasattr(own, member)]:
        raise ValueError(f"{name} is no model: it has no {', '.join(missing)}")
    return linearizable(own)


ADDED_MODELS: Final = AddedParts(
    "model", CHECKERS, _checker_of, "quorumlog.models", "quorumlog.checkers"
)
"""The checkers and sequential models of other packages."""


def find_checker(model: str) -> Checker:
    """Return the checker of this model.

    `model` is a name; `package.module:NAME` of a model or a checker; of a register, a name and its
    first value as JSON: `cas-register=0`, `multi-register={"x": 0}`; or, of transactions, a name
    and the consistency that they must have: `list-append=strict-serializable`. Raises ValueError
    with the existing models, or with the reason why a module, a name or a value is not available.
    """
    name, has_parameter, parameter = model.partition("=")
    if has_parameter and name in CONSISTENCIES:
        return registered(CONSISTENCIES[name], parameter, "consistency")
    if has_parameter:
        return _register(name, parameter)
    return _own(model) if ":" in model else registered(CHECKERS, model, "model", ADDED_MODELS)


def judges_of(model: str | Checker, facts: Facts) -> tuple[Checker, ...]:
    """Return all checkers that judge a history of this model; the model's own is the first.

    A model that looks at groups, lookups or registers alone relies on the log, so the rules of a
    log judge its histories, too: of compacted topics, the rules that hold in spite of compaction.
    Raises ValueError for an unknown model.
    """
    checker = find_checker(model) if isinstance(model, str) else model
    if checker in _OF_LOGS:
        return checker, log_view.CHECKER
    if facts.workload == log_view.COMPACTED_WORKLOAD:
        return checker, log_view.COMPACTED
    return (checker,)


def _register(name: str, initial: str) -> Checker:
    registers = {name: known for name, known in MODELS.items() if isinstance(known, Register)}
    several = multi_register.MULTI_REGISTER
    if name != several:
        registered({**registers, several: None}, name, "register")
    try:
        value = json.loads(initial)
    except ValueError as error:
        raise ValueError(f"the first value {initial!r} is not JSON: {error}") from error
    if name != several:
        return linearizable(replace(registers[name], initial=frozen(value)))
    match value:
        case dict():
            firsts = {key: frozen(one) for key, one in value.items()}
            return multi_register.multi_register(firsts)
        case _:
            raise ValueError(f"the first values {initial!r} are no JSON object of registers")


def _own(model: str) -> Checker:
    module, _, name = model.partition(":")
    try:
        own: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no model {model}: {error}") from error
    return _checker_of(model, own)


def check_history(table: pa.Table, model: str | Checker = DEFAULT_MODEL) -> Verdict:
    """Check a table of history.schema.OPERATIONS. Raises ValueError for an unknown model."""
    facts, bands = facts_of(table.schema.metadata), fault_bands(table)

    def judged(checker: Checker) -> Verdict:
        return checker.conclude([checker.check(checker.explode(table), facts)], bands, facts)

    verdict = joined([judged(checker) for checker in judges_of(model, facts)])
    return verdict.with_fault_phase(fault_phase_of(table))


def _is_narrower(checker: Checker, other: Checker) -> bool:
    return checker.operations < other.operations or checker.micros < other.micros


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
        if checker.is_guessed and fs <= checker.operations and micros <= checker.micros
    ]
    if DEFAULT_MODEL in fits:  # workloads name the narrower models of a log themselves
        return DEFAULT_MODEL
    # A model with operations that this history lacks gives way to one without them.
    fits = [
        name
        for name in fits
        if not any(_is_narrower(CHECKERS[other], CHECKERS[name]) for other in fits)
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
