"""`pytest --after-check` leaves out the tests of `make check SEARCHES=default`, and no others."""

import re

import pytest

from tests.support.repeated import CHECKED, LEFT_OUT, TESTS, is_repeated, is_repeated_file


def test_the_directories_and_marks_are_those_of_make_check() -> None:
    recipe = re.search(r"^quick:.*\n((?:\t.*\n)+)", (TESTS.parent / "Makefile").read_text(), re.M)
    assert recipe is not None
    assert re.findall(r"tests/(\w+)(?=[ \n])", recipe[1]) == [*CHECKED]
    assert "tests/test_*.py" in recipe[1]
    assert re.findall(r"not (\w+)", recipe[1]) == [*LEFT_OUT]
    assert "--hypothesis-profile $(SEARCHES)" in recipe[1]
    run = (TESTS.parent / ".ci/run").read_text()
    assert re.findall(r"^make .*?(?=\s*#)", run, re.M) == [
        "make check SEARCHES=default",
        "make test PYTEST_OPTIONS=--after-check",
    ]


@pytest.mark.parametrize(
    ("file", "mark", "repeated"),
    [
        ("unit/storage/test_disk.py", None, True),
        ("golden/partition/test_golden_partition.py", None, True),
        ("test_tidy.py", None, True),
        ("unit/wire/test_messages_against_kio.py", None, True),
        ("property/test_quorum.py", None, True),
        ("property/test_partition_mutants.py", "planted", False),
        ("chaos/test_spark.py", "spark", False),
        ("chaos/test_chaos_runs.py", "integration", False),
        ("conformance/test_client_against_librdkafka_mock.py", None, False),
        ("integration/test_recall.py", None, False),
    ],
)
def test_what_is_left_out(
    request: pytest.FixtureRequest, file: str, mark: str | None, repeated: bool
) -> None:
    module = pytest.Module.from_parent(request.session, path=TESTS / file)
    item = pytest.Function.from_parent(module, name="one", callobj=lambda: None)
    if mark is not None:
        item.add_marker(mark)
    assert is_repeated(item) is repeated


def test_a_file_is_left_out_if_all_of_its_tests_are() -> None:
    assert is_repeated_file(TESTS / "unit/storage/test_disk.py")
    assert not is_repeated_file(TESTS / "chaos/test_published_histories.py")  # some need Spark
    assert not is_repeated_file(TESTS / "integration/test_recall.py")


@pytest.mark.xdist_group("together")
def test_the_tests_of_a_group_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """Else each process sets up a cluster, a JVM or an installation of its own for them."""
    if request.config.getoption("loadgroup", default=False):
        assert request.node.nodeid.endswith("@together")
