"""The operators: which pieces of a module's text change, and how.

They change calls, conditions and effects inside of functions. Left out is the code whose change
cannot show: assertions and invariants, logs, texts of errors, representations, annotations.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import libcst as cst
from libcst.metadata import CodePosition, CodeRange, MetadataWrapper, PositionProvider

from tools.mutate.callees import Callees, last_name_in_tree
from tools.mutate.mutant import Mutant

DROP_ARGUMENT: Final = "drop an argument"
SWAP_OFFSET: Final = "swap an offset"
FLIP_COMPARISON: Final = "flip a comparison"
SKIP_CONDITION: Final = "skip a condition"
DROP_EFFECT: Final = "drop an effect"
DROP_PERSIST: Final = "drop a persist"
OPERATORS: Final = (
    DROP_ARGUMENT, SWAP_OFFSET, FLIP_COMPARISON, SKIP_CONDITION, DROP_EFFECT, DROP_PERSIST,
)  # fmt: skip

OFFSETS: Final = (
    (
        "log_start_offset", "recovery_point", "flushed_offset", "last_stable_offset",
        "high_watermark", "log_end_offset",
    ),
    ("base_offset", "start_offset", "first_offset", "last_offset", "next_offset", "end_offset"),
)  # fmt: skip
"""Offsets of a log, and of a run of records, in their order. A neighbour replaces an offset."""

_PERSISTS: Final = ("flush", "persist", "sync", "fsync", "checkpoint", "write_", "save")
_CHECKS: Final = frozenset({"check_invariants", "check_progress", "_check_progress"})
_LEFT_OUT_CALLS: Final = frozenset({"require", "some", "assert_never", "cast", "print"} | _CHECKS)
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_LEFT_OUT_FUNCTIONS: Final = frozenset({"__repr__", "__str__"}) | _CHECKS
_FLIPPED: Final[Mapping[type[cst.BaseCompOp], tuple[str, str]]] = {
    cst.LessThan: ("<", "<="),
    cst.LessThanEqual: ("<=", "<"),
    cst.GreaterThan: (">", ">="),
    cst.GreaterThanEqual: (">=", ">"),
}
Objects = Mapping[str, frozenset[str]]
"""The offsets that the product uses of an object, by the object's last name."""


def mutants_of(path: str, source: str, callees: Callees, objects: Objects) -> list[Mutant]:
    """Return all mutants of a module, in the order of the text."""
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    finder = _Finder(path, source, callees, objects)
    wrapper.visit(finder)
    found = {(one.start, one.end, one.replacement): one for one in finder.found}
    ordered = sorted(found.values(), key=lambda one: (one.start, one.end, one.replacement))
    return [*_numbered(ordered)]


def _numbered(mutants: Iterable[Mutant]) -> Iterator[Mutant]:
    """Yield the mutants; equal lines of a function have equal changes, which are told apart."""
    known = Counter[tuple[str, str, str]]()
    for one in mutants:
        change = one.function, *one.change
        yield replace(one, occurrence=known[change])
        known[change] += 1


def offsets_used(sources: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return the offsets that are attributes of the same object, by the object's last name.

    sources: path -> text of the modules of one package.
    """
    found: dict[str, set[str]] = {}
    for source in sources.values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and _neighbours(node.attr):
                found.setdefault(last_name_in_tree(node.value), set()).add(node.attr)
    return {name: frozenset(offsets) for name, offsets in found.items()}


def last_name(node: cst.CSTNode) -> str:
    """Return the last name of an expression: `log` of `self._driver.log`, `end` of `x.end()`."""
    if isinstance(node, cst.Call):
        return last_name(node.func)
    if isinstance(node, cst.Await | cst.Subscript):
        return last_name(node.expression if isinstance(node, cst.Await) else node.value)
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def _neighbours(name: str) -> list[str]:
    """Return the offsets of the same kind, the nearest first; none: the name is no offset."""
    plain = name.removeprefix("_")
    for kind in OFFSETS:
        if plain in kind:
            at = kind.index(plain)
            others = sorted(kind, key=lambda one: abs(kind.index(one) - at))
            return [one if name == plain else f"_{one}" for one in others[1:]]
    return []


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, path: str, source: str, callees: Callees, objects: Objects) -> None:
        super().__init__()
        self._path, self._source = path, source
        self._callees, self._objects = callees, objects
        self._names: list[str] = []  # of the classes, and of the outermost function
        self._locals: frozenset[str] = frozenset()
        self._depth = 0  # of functions
        self._statement: range = range(0)
        self.found: list[Mutant] = []

    # --- Where the visitor is ---

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:  # noqa: N802 - libcst's name
        if not self._depth:
            self._names.append(node.name.value)
            node.body.visit(self)
            self._names.pop()
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:  # noqa: N802
        if node.name.value in _LEFT_OUT_FUNCTIONS:
            return False
        is_outermost = self._depth == 0
        if is_outermost:
            self._names.append(node.name.value)
            self._locals = _offsets_bound_in(node)
        self._depth += 1
        node.body.visit(self)
        self._depth -= 1
        if is_outermost:
            self._names.pop()
        return False

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            at = self._range(node)
            is_small = isinstance(node, cst.BaseSmallStatement)
            self._statement = range(at.start.line, (at.end if is_small else at.start).line + 1)
        left_out = cst.Assert | cst.Raise | cst.Annotation | cst.FormattedString | cst.Decorator
        if isinstance(node, left_out) or _is_left_out_call(node):
            return False
        return super().on_visit(node)

    def _range(self, node: cst.CSTNode) -> CodeRange:
        at = self.get_metadata(PositionProvider, node)
        assert isinstance(at, CodeRange)  # noqa: S101 - for mypy
        return at

    def _add(self, operator: str, node: cst.CSTNode, replacement: str) -> None:
        at = self._range(node)
        self._add_at(operator, at.start, at.end, replacement)

    def _add_at(
        self, operator: str, start: CodePosition, end: CodePosition, replacement: str
    ) -> None:
        if not self._depth:
            return
        self.found.append(
            Mutant(
                self._path,
                ".".join(self._names),
                operator,
                (start.line, start.column),
                (end.line, end.column),
                replacement,
                self._source,
                range(self._statement.start, max(self._statement.stop, start.line + 1)),
            )
        )

    def _drop(
        self,
        operator: str,
        nodes: Sequence[cst.CSTNode],
        dropped: cst.CSTNode,
        alone: tuple[cst.CSTNode, str],
    ) -> None:
        """Drop a node of a list, with its comma; `alone`: replaces it all if it has only this."""
        at = [*map(self._range, nodes)]
        index = next(index for index, one in enumerate(nodes) if one is dropped)
        if index + 1 < len(nodes):
            self._add_at(operator, at[index].start, at[index + 1].start, "")
        elif index:
            self._add_at(operator, at[index - 1].end, at[index].end, "")
        else:
            self._add(operator, *alone)

    # --- Arguments ---

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        callee, arguments = last_name(node.func), [*node.args]
        if callee == "partial" and arguments:
            callee, arguments = last_name(arguments[0].value), arguments[1:]
        positional = [one for one in arguments if one.keyword is None and not one.star]
        for one in arguments:
            if one.keyword is not None:
                is_replace = callee == "replace"
                may_drop = is_replace or self._callees.may_drop(callee, one.keyword.value)
            else:
                is_last = bool(positional) and one is positional[-1]
                has_stars = any(other.star for other in arguments)
                may_drop = (
                    is_last
                    and not has_stars
                    and self._callees.may_drop_last(callee, len(positional))
                )
            if may_drop:
                alone = node, _text(node.with_changes(args=[]))
                self._drop(DROP_ARGUMENT, node.args, one, alone)

    # --- Offsets ---

    def visit_Attribute(self, node: cst.Attribute) -> None:  # noqa: N802
        used = self._objects.get(last_name(node.value), frozenset())
        others = [one for one in _neighbours(node.attr.value) if one in used]
        for other in others[:2]:
            self._add(SWAP_OFFSET, node.attr, other)

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:  # noqa: N802, ARG002
        """Replace no attribute by a local variable."""
        self._is_attribute = True

    def leave_Attribute_attr(self, node: cst.Attribute) -> None:  # noqa: N802, ARG002
        self._is_attribute = False

    _is_attribute = False

    def visit_Arg(self, node: cst.Arg) -> bool:  # noqa: N802
        node.value.visit(self)  # without the keyword, which is a name as well
        return False

    def visit_AssignTarget(self, node: cst.AssignTarget) -> bool:  # noqa: N802, ARG002
        return False

    def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
        if not self._is_attribute and node.value in self._locals:
            others = [one for one in _neighbours(node.value) if one in self._locals]
            for other in others[:2]:
                self._add(SWAP_OFFSET, node, other)

    # --- Conditions ---

    def visit_Comparison(self, node: cst.Comparison) -> None:  # noqa: N802
        for target in node.comparisons:
            if (signs := _FLIPPED.get(type(target.operator))) is not None:
                self._add(
                    FLIP_COMPARISON, target.operator, _text(target.operator).strip().replace(*signs)
                )

    def visit_If(self, node: cst.If) -> None:  # noqa: N802
        if not _is_type_check(node.test):
            self._add(SKIP_CONDITION, node.test, "False")
            if not _only_raises(node):
                self._add(SKIP_CONDITION, node.test, "True")

    def visit_IfExp(self, node: cst.IfExp) -> None:  # noqa: N802
        if not _is_type_check(node.test) and not _is_level(node.body):
            self._add(SKIP_CONDITION, node.test, "True")
            self._add(SKIP_CONDITION, node.test, "False")

    def visit_BooleanOperation(self, node: cst.BooleanOperation) -> None:  # noqa: N802
        for kept, skipped in ((node.left, node.right), (node.right, node.left)):
            if not _is_type_check(skipped):
                self._add(SKIP_CONDITION, node, _whole_text(kept))

    def visit_CompIf(self, node: cst.CompIf) -> None:  # noqa: N802
        if not _is_type_check(node.test):
            self._add(SKIP_CONDITION, node.test, "True")

    # --- Effects ---

    def visit_Expr(self, node: cst.Expr) -> None:  # noqa: N802
        value = node.value.expression if isinstance(node.value, cst.Await) else node.value
        if isinstance(value, cst.Call):
            if not _is_left_out_call(value):
                is_persist = last_name(value.func).lstrip("_").startswith(_PERSISTS)
                self._add(DROP_PERSIST if is_persist else DROP_EFFECT, node, "pass")
        elif isinstance(value, cst.Yield) and value.value is not None:
            self._add(DROP_EFFECT, node, "yield from ()")

    def visit_List(self, node: cst.List) -> None:  # noqa: N802
        for one in node.elements:
            if isinstance(one.value, cst.Call):
                self._drop(DROP_EFFECT, node.elements, one, (node, "[]"))


def _offsets_bound_in(node: cst.FunctionDef) -> frozenset[str]:
    """Return the offsets among the parameters and variables of a function."""
    names = [one.name.value for one in (*node.params.params, *node.params.kwonly_params)]
    assigned = _Assigned()
    node.body.visit(assigned)
    return frozenset(name for name in (*names, *assigned.names) if _neighbours(name))


class _Assigned(cst.CSTVisitor):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:  # noqa: N802
        targets = [node.target]
        if isinstance(node.target, cst.Tuple):
            targets = [one.value for one in node.target.elements]  # type: ignore[misc]
        self.names |= {one.value for one in targets if isinstance(one, cst.Name)}


def _is_left_out_call(node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.Call):
        return False
    name = last_name(node.func)
    if isinstance(node.func, cst.Attribute) and name in _LEVELS:
        return last_name(node.func.value).lstrip("_") in {"logger", "logging"}
    return name in _LEFT_OUT_CALLS


def _is_level(node: cst.BaseExpression) -> bool:
    """Whether it is the level of a log: `logging.WARNING`."""
    return isinstance(node, cst.Attribute) and last_name(node.value) == "logging"


def _is_type_check(test: cst.BaseExpression) -> bool:
    return isinstance(test, cst.Call) and last_name(test.func) in {"isinstance", "issubclass"}


def _only_raises(node: cst.If) -> bool:
    body = node.body.body
    first = body[0] if len(body) == 1 else None
    return isinstance(first, cst.SimpleStatementLine) and isinstance(first.body[0], cst.Raise)


_EMPTY: Final = cst.Module(body=[])


def _text(node: cst.CSTNode) -> str:
    """Return the text of a node without its parentheses, as its position is given."""
    if isinstance(node, cst.BaseExpression):
        node = node.with_changes(lpar=[], rpar=[])
    return _EMPTY.code_for_node(node)


def _whole_text(node: cst.BaseExpression) -> str:
    return _EMPTY.code_for_node(node)
