"""The parameters with defaults of functions and classes, by the last name of the callee."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters of a call, without `self`, in their order; and those that may be left out."""

    positional: tuple[str, ...]
    with_default: frozenset[str]
    names: frozenset[str]


@dataclass
class Callees:
    """All signatures of a name. A name that several functions share has several."""

    _signatures: defaultdict[str, list[Signature]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, source: str) -> None:
        """Add the functions and the dataclasses of a module."""
        tree = ast.parse(source)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._signatures[node.name].append(_of_function(node, is_method=False))
            elif isinstance(node, ast.ClassDef):
                self._add_class(node)

    def _add_class(self, found: ast.ClassDef) -> None:
        has_init = False
        for node in found.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            is_static = any(last_name_in_tree(one) == "staticmethod" for one in node.decorator_list)
            has_init |= node.name == "__init__"
            name = found.name if node.name == "__init__" else node.name
            self._signatures[name].append(_of_function(node, is_method=not is_static))
        if not has_init and any(
            last_name_in_tree(one) == "dataclass" for one in found.decorator_list
        ):
            self._signatures[found.name].append(_of_fields(found))

    def may_drop(self, callee: str, argument: str) -> bool:
        """Return whether a call remains legal without a keyword argument."""
        takers = [one for one in self._signatures.get(callee, ()) if argument in one.names]
        return bool(takers) and all(argument in one.with_default for one in takers)

    def may_drop_last(self, callee: str, count: int) -> bool:
        """Return whether a call with `count` positional arguments may leave out the last."""
        takers = [one for one in self._signatures.get(callee, ()) if len(one.positional) >= count]
        return bool(takers) and all(one.positional[count - 1] in one.with_default for one in takers)


def callees_of(sources: Iterable[str]) -> Callees:
    """Return the signatures of all modules."""
    found = Callees()
    for source in sources:
        found.add(source)
    return found


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef, *, is_method: bool) -> Signature:
    of_it = node.args
    positional = [one.arg for one in (*of_it.posonlyargs, *of_it.args)]
    optional = set(positional[len(positional) - len(of_it.defaults) :])
    for one, default in zip(of_it.kwonlyargs, of_it.kw_defaults, strict=True):
        if default is not None:
            optional.add(one.arg)
    names = {*positional, *(one.arg for one in of_it.kwonlyargs)}
    return Signature(tuple(positional[is_method:]), frozenset(optional), frozenset(names))


def _of_fields(found: ast.ClassDef) -> Signature:
    fields = [
        node
        for node in found.body
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
    ]
    names = [node.target.id for node in fields if isinstance(node.target, ast.Name)]
    optional = {
        node.target.id
        for node in fields
        if isinstance(node.target, ast.Name) and node.value is not None
    }
    options = [one for one in found.decorator_list if isinstance(one, ast.Call)]
    is_keyword_only = any(word.arg == "kw_only" for one in options for word in one.keywords)
    positional = () if is_keyword_only else tuple(names)
    return Signature(positional, frozenset(optional), frozenset(names))


def last_name_in_tree(node: ast.expr) -> str:
    """Return the last name of an expression: `log` of `self._driver.log`, `end` of `x.end()`."""
    if isinstance(node, ast.Call):
        return last_name_in_tree(node.func)
    if isinstance(node, ast.Await | ast.Subscript):
        return last_name_in_tree(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
