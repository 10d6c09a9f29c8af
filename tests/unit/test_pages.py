"""The reader of documentation pages finds a page that is not true."""

from pathlib import Path

import pytest

from tests.support.pages import Command, File, Reader, steps

PAGE = """
# A page

Write `two.txt`:

```json
2
```

```console
$ cat two.txt
3
```

```console exact
$ printf 'a\\nb\\nc\\n'
a
...
```
"""


def test_a_page_is_its_files_and_commands_in_order() -> None:
    assert steps(PAGE) == [
        File("two.txt", "2\n"),
        Command("cat two.txt", "console", ["3"], begin=69, end=71),
        Command("printf 'a\\nb\\nc\\n'", "console exact", ["a", "..."], begin=114, end=120),
    ]


def test_numbers_may_differ(tmp_path: Path) -> None:
    Reader(tmp_path).follow(PAGE)


def test_an_indented_ellipsis_stands_for_any_lines(tmp_path: Path) -> None:
    Reader(tmp_path).follow("```console\n$ printf 'a\\n  b\\nc\\n'\na\n  ...\nc\n```\n")


def test_an_allowed_anomaly_may_be_there(tmp_path: Path) -> None:
    anomaly = "  late-read: 3 (allowed)\\n    e.g. a-0: late\\n      known by: send\\n"
    Reader(tmp_path).follow(f"```console\n$ printf 'VALID\\n{anomaly}end\\n'\nVALID\nend\n```\n")


def test_a_client_may_report_a_wait(tmp_path: Path) -> None:
    wait = "cli: broker 1 at h:1 does not answer CreateTopics (for 3 s)"
    Reader(tmp_path).follow(f"```console\n$ echo '{wait}'; echo created t\ncreated t\n```\n")
    with pytest.raises(AssertionError, match="instead of"):
        Reader(tmp_path).follow(f"```console\n$ echo other\n{wait}\n```\n")


@pytest.mark.parametrize(
    ("kind", "severity"),
    [("console", "invalid"), ("console seeded", "allowed"), ("console exact", "allowed")],
)
def test_another_anomaly_is_found(tmp_path: Path, kind: str, severity: str) -> None:
    anomaly = f"  late-read: 3 ({severity})\\n    e.g. a-0: late\\n"
    with pytest.raises(AssertionError, match="instead of"):
        Reader(tmp_path).follow(f"```{kind}\n$ printf 'VALID\\n{anomaly}'\nVALID\n```\n")


@pytest.mark.parametrize(
    "session",
    [
        "```console exact\n$ echo 2\n3\n```\n",
        "```console seeded\n$ echo 2 events in 0.20 s '(3x)'\n3 events in 0.20 s (3x)\n```\n",
        "```console\n$ echo two\nthree\n```\n",
        "```console\n$ echo two\n```\n",
        "```console\n$ true\ntwo\n```\n",
        "```console\n$ printf 'a\\nb\\n'\na\n```\n",
        "```console\n$ printf 'a\\nb\\n'\n...\na\n```\n",
        "```console\n$ false\n$ true\n```\n",
    ],
    ids=["number", "seeded number", "word", "too much", "nothing", "more", "order", "failed"],
)
def test_a_page_that_is_not_true_is_found(session: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        Reader(tmp_path).follow(session)


def test_a_seeded_run_may_take_another_time(tmp_path: Path) -> None:
    session = "$ echo '2 events in 0.20 s (30x), done'\n2 events in 1.00 s (6x), done\n"
    Reader(tmp_path).follow(f"```console seeded\n{session}```\n")


def test_a_page_gets_the_output_of_this_run(tmp_path: Path) -> None:
    kinds = ("console", "console seeded", "console exact")
    page = "Write `n.txt`:\n\n```json\n7\n```\n" + "".join(
        f"A {kind}\n```{kind}\n$ cat n.txt\n3\n\n$ seq 8 9\n...\n1\n```\nend\n" for kind in kinds
    )
    renewed = Reader(tmp_path, renews=True).follow(page)
    assert renewed == page.replace("n.txt\n3\n\n", "n.txt\n7\n").replace("...\n1\n", "...\n9\n")
    assert Reader(tmp_path).follow(renewed) == renewed


def test_progress_is_left_out(tmp_path: Path) -> None:
    told = "printf '%s\\n' 'running ━━━ 50%' '40 seeds: about 0.5 min to go; Ctrl-C ends it' done"
    Reader(tmp_path).follow(f"```console exact\n$ {told}\ndone\n```\n")


def test_a_page_may_show_a_failure(tmp_path: Path) -> None:
    Reader(tmp_path).follow("```console exact\n$ (exit 3)\n$ echo $?\n3\n$ echo on\non\n```\n")
