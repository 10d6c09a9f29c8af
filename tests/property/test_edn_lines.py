"""The quick reader of EDN returns what the complete one returns: the forms, or the error."""

import random
from collections.abc import Callable
from typing import Any

from quorumlog.chaos.history.edn import EdnError, plain, read_forms
from quorumlog.chaos.history.edn_lines import read_elements
from tests.support.sizes import tries

# Each line of these has one token.
SIMPLE_TOKENS = """
nil
true
0
-1
3.5
-0
1e999
:a
:fail
:f
:nil
:a/b
:n1.x-y!
""
"x"
"a b, c"
"nil :a {"
"]"
"é"
"""
OTHER_TOKENS = """
1N
2.5M
+4
1/2
007
5.
null
:null
NaN
-Infinity
a/b
a:b
:a:b
#'v
^m
é
:é
"null"
"\\n"
"\\""
"#;("
\\a
\\newline
##Inf
#_ 1
#t [1]
#{1 :a}
#:n{:a 1}
#_
#
:
'
"""
SIMPLE = SIMPLE_TOKENS.split("\n")[1:-1]
OTHERS = [*OTHER_TOKENS.split("\n")[1:-1], '"\t"', '"\x01"', '"\x1f"', '"\r"', "\x0b"]
OTHERS += ['"two\nlines"', "; c\n", '; "\n']
BETWEEN = [" ", " ", " ", ", ", ",", "  ", " ,, ", "\t", "\r\n", "\n", "", "\u00a0"]
SOUP = ["{", "}", "[", "]", "(", ")", "#{", '"', *BETWEEN]


def token(rng: random.Random, *, odd: float) -> str:
    return rng.choice(OTHERS if rng.random() < odd else SIMPLE)


def form(rng: random.Random, depth: int, odd: float, between: Callable[[], str]) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.4:
        return token(rng, odd=odd)
    inside = [form(rng, depth - 1, odd, between) for _ in range(2 * rng.randint(0, 2))]
    if kind < 0.7:
        keys = rng.sample([":a", ":b", '"c"', "1", "true", "[1 2]", "nil", '"1"', "{}"], 4)
        inside[::2] = keys[: len(inside) // 2] if rng.random() < 0.8 else inside[::2]
        return f"{{{between().join(inside)}}}"
    opening, closing = rng.choice([("[", "]"), ("[", "]"), ("[", "]"), ("(", ")")])
    return opening + between().join(inside) + closing


def some_text(rng: random.Random) -> str:
    """Return forms one a line, or not quite; in a vector, or not; now and then with a defect."""
    odd, spaces = rng.choice([(0.0, 0.0), (0.0, 0.3), (0.1, 0.1), (0.4, 0.5)])

    def between() -> str:
        return rng.choice(BETWEEN) if rng.random() < spaces else " "

    def line() -> str:
        forms = [form(rng, 3, odd, between) for _ in range(rng.choice([1, 1, 1, 0, 2]))]
        return between().join(forms)

    text = rng.choice(["\n", "\n", ",\n", "\r\n"]).join(line() for _ in range(rng.randint(1, 5)))
    if rng.random() < 0.3:  # forms over several lines
        text = "".join("\n" if one == " " and rng.random() < 0.2 else one for one in text)
    if rng.random() < 0.4:
        opening, closing = rng.choice([("[", "]"), ("(", ")"), ("[", ")")])
        text = (
            f"{rng.choice(['', ' ', chr(10)])}{opening}{text}{closing}{rng.choice(['', chr(10)])}"
        )
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        place = rng.randint(0, len(text))
        insert = rng.choice(SOUP) if rng.random() < 0.6 else token(rng, odd=0.5)
        text = text[:place] + insert + text[place + rng.randint(0, 1) :]
    return text


def complete(text: str) -> list[tuple[int, str]]:
    forms = read_forms(text)
    if len(forms) == 1 and isinstance(forms[0].value, list):
        pairs = zip(forms[0].lines, forms[0].value, strict=True)
    else:
        pairs = ((each.line, each.value) for each in forms)  # type: ignore[assignment]
    return [(line, repr(plain(value))) for line, value in pairs]


def quick(text: str) -> list[tuple[int, str]]:
    return [(each.line, repr(plain(each.value))) for each in read_elements(text)]


def outcome(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except EdnError as error:
        return error.line, str(error)


def test_the_quick_reader_and_the_complete_one_agree() -> None:
    wrong = lists = quickly = 0
    for seed in range(tries(20_000)):
        text = some_text(random.Random(seed))
        expected = outcome(complete, text)
        assert outcome(quick, text) == expected, (seed, text)
        if isinstance(expected, tuple):
            wrong += 1
            continue
        lists += 1
        quickly += any(each.is_plain for each in read_elements(text))
    assert min(wrong, lists, quickly) > tries(20_000) // 5


def test_a_form_may_lie_as_deep_as_the_complete_reader_allows() -> None:
    for depth in range(55, 70):
        for opening, closing in (("[", "]"), ("{:a ", "}")):
            deep = opening * depth + "1" + closing * depth
            for text in (f"{{:a {deep}}}\n{{:b 1}}", f"[{deep}\n{deep}]"):
                assert outcome(quick, text) == outcome(complete, text), text


def test_no_malformed_text_becomes_another_one() -> None:
    """Each closes in JSON, after the replacements, what it does not close in EDN."""
    texts = [
        '{1 2], "":[3 4}',
        '{"" [1} ]',
        "1], [2",
        "[1\n2]\n3], [4",
        '{:a "x}\n" :b "z\n"}',
        '"":[1]',
    ]
    texts += ['"x\\" y"', '; "\n"x y"\n; "']
    for text in texts:
        assert outcome(quick, text) == outcome(complete, text), text


def test_a_keyword_may_begin_another_and_a_line_may_have_any_spaces() -> None:
    text = "{:f :fail,  :fa 1 , :v [ :f nil,nil , nil ], :e {}}\n ,{:f []} {:g [{}]},\n\n"
    assert quick(text) == complete(text)
    assert all(each.is_plain for each in read_elements(text))


def test_forms_over_several_lines_and_strings_with_anything_are_read_quickly() -> None:
    text = (
        '({:a 1,\n  :b [1\n 2]}\n{:e "a \\\\ \\"b\\" ; [ { null NaN \\n \\u0041", :f nil}\n'
        ' {:g\r\n "(" } )\n'
    )
    assert quick(text) == complete(text)
    assert [(each.line, each.is_plain) for each in read_elements(text)] == [
        (1, True),
        (4, True),
        (5, True),
    ]


def test_many_keywords_are_read_alike() -> None:
    text = "\n".join(f"{{:k{n} :k{n * n}, :v [:k nil]}}" for n in range(200))
    assert quick(text) == complete(text)
    assert all(each.is_plain for each in read_elements(text))
