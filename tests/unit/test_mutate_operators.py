"""Which mutants the operators of tools.mutate make of a small source, and which they leave out."""

from textwrap import dedent

import pytest

from tools.mutate.callees import callees_of
from tools.mutate.mutant import Mutant
from tools.mutate.operators import (
    DROP_ARGUMENT,
    DROP_EFFECT,
    DROP_PERSIST,
    FLIP_COMPARISON,
    SKIP_CONDITION,
    SWAP_OFFSET,
    mutants_of,
    offsets_used,
)
from tools.mutate.sources import changed_lines

CALLEES = """
def send(to, body, *, retries=3, marker): ...
class Log:
    def append(self, batch, epoch=0): ...
@dataclass
class Vote:
    epoch: int
    is_pre: bool = False
"""


def found(text: str, callees: str = CALLEES) -> list[Mutant]:
    source = dedent(text).lstrip()
    mutants = mutants_of("a/b.py", source, callees_of([callees]), offsets_used({"a/b.py": source}))
    for mutant in mutants:
        compile(mutant.mutated, "b.py", "exec")
    return mutants


def changes(text: str, operator: str, callees: str = CALLEES) -> list[str]:
    """Return the changed text of each mutant of an operator, without the rest of its lines."""
    return [one.key[3] for one in found(text, callees) if one.operator == operator]


def test_an_argument_is_dropped_if_its_parameter_has_a_default() -> None:
    text = """
    def f(log):
        send(1, 2, retries=4, marker=5)
        log.append(1, 7)
        return Vote(epoch=1, is_pre=True)
    """
    assert changes(text, DROP_ARGUMENT) == [
        "send(1, 2, marker=5)",
        "log.append(1)",
        "return Vote(epoch=1)",
    ]


def test_an_argument_stays_that_another_function_of_the_name_requires() -> None:
    others = CALLEES + "def append(batch, epoch): ...\n"
    assert changes("def f(log): log.append(1, 7)", DROP_ARGUMENT, others) == []
    assert changes("def f(log): unknown(a=1)", DROP_ARGUMENT) == []
    assert changes("def f(rest): send(*rest, marker=1)", DROP_ARGUMENT) == []


def test_an_argument_of_a_partial_call_and_of_a_replaced_field_is_dropped() -> None:
    text = "def f(x): return partial(send, x, retries=1), replace(x, epoch=2)"
    assert changes(text, DROP_ARGUMENT) == [
        "def f(x): return partial(send, x), replace(x, epoch=2)",
        "def f(x): return partial(send, x, retries=1), replace(x)",
    ]


def test_an_argument_of_a_call_of_several_lines_is_dropped_with_its_line() -> None:
    text = """
    def f():
        send(
            1,
            retries=4,
            marker=5,
        )
    """
    [mutant] = [one for one in found(text) if one.operator == DROP_ARGUMENT]
    assert mutant.diff.splitlines() == ["         1,", "-        retries=4,", "         marker=5,"]


def test_an_offset_is_swapped_for_another_that_the_product_uses_of_the_object() -> None:
    text = """
    def f(log, other):
        use(log.high_watermark, log.log_end_offset)
        use(other.high_watermark)
    """
    assert changes(text, SWAP_OFFSET) == [
        "use(log.log_end_offset, log.log_end_offset)",
        "use(log.high_watermark, log.high_watermark)",
    ]


def test_an_offset_is_swapped_for_a_parameter_or_variable_of_the_function() -> None:
    text = """
    def f(high_watermark):
        log_end_offset = end()
        use(high_watermark=high_watermark)
        high_watermark = 0
    """
    assert changes(text, SWAP_OFFSET) == ["use(high_watermark=log_end_offset)"]


@pytest.mark.parametrize(("sign", "flipped"), [("<", "<="), ("<=", "<"), (">", ">="), (">=", ">")])
def test_a_comparison_is_flipped(sign: str, flipped: str) -> None:
    assert changes(f"def f(x): return x {sign} 1", FLIP_COMPARISON) == [
        f"def f(x): return x {flipped} 1"
    ]
    assert changes("def f(x): return x == 1", FLIP_COMPARISON) == []


def test_a_condition_is_skipped() -> None:
    assert changes("def f(x):\n    if x:\n        a()", SKIP_CONDITION) == ["if False:", "if True:"]
    assert changes("def f(x, y): return x and (y or 1)", SKIP_CONDITION) == [
        "def f(x, y): return (y or 1)",
        "def f(x, y): return x",
        "def f(x, y): return x and (1)",
        "def f(x, y): return x and (y)",
    ]
    assert changes("def f(x): return 1 if x else 2", SKIP_CONDITION) == [
        "def f(x): return 1 if False else 2",
        "def f(x): return 1 if True else 2",
    ]
    assert changes("def f(x): return [a for a in x if a]", SKIP_CONDITION) == [
        "def f(x): return [a for a in x if True]"
    ]


def test_a_refusal_is_skipped_but_not_made_for_all() -> None:
    assert changes("def f(x):\n    if x:\n        raise Wrong(x)", SKIP_CONDITION) == ["if False:"]


def test_an_effect_and_a_persist_are_dropped() -> None:
    text = """
    async def f(self, log):
        self.effects.append(log)
        await log.flush()
        return [Send(), *rest, Persist()]
    """
    assert changes(text, DROP_EFFECT) == [
        "pass",
        "return [*rest, Persist()]",
        "return [Send(), *rest]",
    ]
    assert changes(text, DROP_PERSIST) == ["pass"]


def test_a_generator_that_yields_nothing_stays_a_generator() -> None:
    assert changes("def f():\n    yield Send()", DROP_EFFECT) == ["yield from ()"]
    assert changes("def f():\n    return [Send()]", DROP_EFFECT) == ["return []"]


@pytest.mark.parametrize(
    "body",
    [
        "assert x < 1",
        "require(x < 1, 'less')",
        "_logger.warning('%s', x < 1)",
        "raise Wrong(f'{x < 1}')",
        "level = logging.INFO if x else logging.WARNING",
        "y: List[x < 1] = 0",
    ],
)
def test_what_cannot_show_is_left_out(body: str) -> None:
    assert found(f"def f(x):\n    {body}") == []
    assert found("def __repr__(self):\n    return str(1 < self.x)") == []
    assert found("LIMIT = 1 < 2\nclass A:\n    b = send(retries=1)") == []
    assert changes("def f(x): return 1 if isinstance(x, int) else 2", SKIP_CONDITION) == []


def test_a_mutant_is_in_the_outermost_function_and_its_key_has_no_line() -> None:
    text = """
    class A:
        def f(self, x):
            def inner():
                return x < 1
            return inner
    """
    [mutant] = found(text)
    [moved] = found("\n\n\n# longer\n" + dedent(text))
    assert (mutant.function, mutant.at_lines) == ("A.f", range(4, 5))
    assert mutant.key == moved.key == ("a/b.py", "A.f", "return x < 1", "return x <= 1", 0)
    assert moved.place == "a/b.py:6 A.f"


def test_equal_lines_of_a_function_are_told_apart() -> None:
    text = """
    def f(x):
        if x < 1:
            a()
        if x < 1:
            b()
    def g(x):
        if x < 1:
            a()
    """
    flipped = [one for one in found(text) if one.operator == FLIP_COMPARISON]
    assert [(one.function, one.occurrence) for one in flipped] == [("f", 0), ("f", 1), ("g", 0)]
    assert len({one.key for one in flipped}) == 3


def test_the_changed_lines_of_a_diff() -> None:
    diff = dedent(
        """
        diff --git a/p/x.py b/p/x.py
        --- a/p/x.py
        +++ b/p/x.py
        @@ -3 +3 @@ def f():
        @@ -10,0 +11,2 @@
        @@ -20,2 +22,0 @@
        +++ b/p/y.py
        @@ -1,2 +1 @@
        """
    )
    assert changed_lines(diff) == {"p/x.py": {3, 11, 12}, "p/y.py": {1}}
