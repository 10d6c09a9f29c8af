"""What a test tells its history, what checkers make of it, records of any client, the mark."""

import copy
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quorumlog.chaos.checkers import Valid
from quorumlog.chaos.history import checksum_of, read_history
from quorumlog.chaos.history.recorded_values import RecordedValues, key_of, read_records
from quorumlog.client import ErrorCode, KafkaError, RecordMetadata, TopicPartition
from quorumlog.client.records import ConsumerRecord, OffsetAndMetadata
from quorumlog.client.sync import SyncConsumer, SyncProducer
from quorumlog.testing.history import History, HistoryClosed
from quorumlog.testing.marks import ChaosMark, duration_s
from quorumlog.testing.topics import FreshTopic, topic_name
from quorumlog.testing.trial import Trial, directory_name

KEY = "orders-0"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Trial:
    return Trial(request.node, tmp_path)


@pytest.fixture
def history(trial: Trial) -> Iterator[History]:
    with History(trial) as history:
        yield history


def operations(history: History, trial: Trial) -> list[dict[str, Any]]:
    _ = history.verdict
    table: pa.Table = read_history(trial.store)
    return table.to_pylist()  # type: ignore[no-any-return]  # of pyarrow


def send(history: History, value: object, offset: int) -> None:
    with history.send(KEY, value) as operation:
        operation.ok(offset=offset)


def poll(history: History, *records: tuple[int, object], client: str = "a") -> None:
    with history.poll(client=client) as operation:
        operation.ok([(KEY, offset, value) for offset, value in records])


def test_the_end_of_an_operation_is_what_the_block_says(history: History, trial: Trial) -> None:
    send(history, 1, 0)
    with history.send(KEY, 2) as operation:
        operation.fail("refused")
    with history.send(KEY, 3) as operation:
        operation.unknown("no answer")
    with history.send(KEY, 4):
        pass
    found = operations(history, trial)
    assert [(one["type"], one["error"]) for one in found] == [
        ("ok", ""),
        ("fail", "refused"),
        ("info", "no answer"),
        ("info", "the test did not report the outcome"),
    ]
    # After an unknown operation its process does nothing more.
    assert [one["process"] for one in found] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TimeoutError("late"), "info"),
        (KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "large", definite=True), "fail"),
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT, "late", definite=False), "info"),
        (KeyboardInterrupt(), "info"),
    ],
)
def test_an_error_goes_on_and_is_definite_only_if_it_says_so(
    history: History, trial: Trial, error: BaseException, outcome: str
) -> None:
    def send_and_raise() -> None:
        with history.send(KEY, 1):
            raise error

    with pytest.raises(type(error)):
        send_and_raise()
    assert [one["type"] for one in operations(history, trial)] == [outcome]


def test_sends_may_overlap(history: History, trial: Trial) -> None:
    with history.send(KEY, 1) as first, history.send(KEY, 2) as second:
        second.ok(offset=0)
        first.ok(offset=1)
    assert sorted(one["process"] for one in operations(history, trial)) == [0, 1]


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda history: send(history, 7, 1), "value 7 was sent to orders-0 before"),
        (lambda history: send(history, b"7", 1), "was sent to orders-0 before"),
        (lambda history: send(history, 8, -1), "the acknowledged offset is expected"),
        (lambda history: history.send(KEY, 9).ok(offset=1), "its block has not begun"),
    ],
)
def test_mistakes_are_told(history: History, mistake: Callable[[History], None], said: str) -> None:
    send(history, 7, 0)
    with pytest.raises(ValueError, match=said):
        mistake(history)


def test_an_operation_ends_once(history: History) -> None:
    with history.send(KEY, 1) as operation:
        operation.ok(offset=0)
        with pytest.raises(ValueError, match="this send has ended"):
            operation.fail()


def test_one_client_polls_once_at_a_time(history: History) -> None:
    with history.poll(client="a"):
        with history.poll(client="b"):
            pass
        with pytest.raises(ValueError, match="name each by client="):
            history.poll(client="a").__enter__()


def test_every_thread_is_a_client(history: History, trial: Trial) -> None:
    send(history, 1, 0)
    with history.poll() as operation:
        thread = threading.Thread(target=lambda: history.poll().__enter__())
        thread.start()
        thread.join()
        operation.ok([(KEY, 0, 1)])
    readers = {one["process"] for one in operations(history, trial) if one["f"] == "poll"}
    assert len(readers) == 2


READERS: dict[str, tuple[list[int | str], Valid, str]] = {
    # what reader a does, the verdict, and an anomaly of it
    "one that begins in the middle accuses no one": ([1], "unknown", ""),
    "one that begins at the beginning proves a loss": (["assign", 1], False, "lost-write"),
    "a jump is a gap unless it is told": ([0, "seek", 2, "forget", 1], "unknown", ""),
    "a jump that is not told is found": ([0, 2], False, "poll-skip"),
    "a poll of unknown outcome proves no loss": (["assign", 0, "unknown", 2], "unknown", ""),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_is_judged_by_its_polls_and_what_is_told_of_its_place(
    history: History, name: str
) -> None:
    acts, valid, anomaly = READERS[name]
    for value in range(4):
        send(history, value, value)
    for act in acts:
        match act:
            case "assign":
                history.assign([KEY], client="a")
            case "seek":
                history.seek([KEY], client="a")
            case "forget":
                history.forget_positions(client="a")
            case "unknown":
                with history.poll(client="a") as operation:
                    operation.unknown("the connection was lost")
            case _:
                poll(history, (int(act), int(act)))
    assert history.verdict.valid == valid
    assert not anomaly or anomaly in history.verdict.anomalies


def test_text_is_judged_as_numbers_are(history: History) -> None:
    send(history, "one", 0)
    send(history, b"two", 1)
    poll(history, (0, b"two"), (1, "one"))
    assert "inconsistent-offsets" in history.verdict.anomalies


def test_a_judged_history_takes_no_more(history: History) -> None:
    send(history, 1, 0)
    _ = history.verdict
    with pytest.raises(HistoryClosed, match="takes no more operations"):
        send(history, 2, 1)


def test_what_the_nemesis_does_is_in_the_history(history: History, trial: Trial) -> None:
    trial.note("kill", "2", "#1 kill: partition-leader")
    send(history, 1, 0)
    found = operations(history, trial)
    assert (found[0]["process"], found[0]["f"], found[0]["node"]) == (-1, "kill", "2")


class Sends(SyncProducer):
    """A producer without a cluster: it acknowledges, or raises."""

    def __init__(self, answers: list[object]) -> None:
        self.answers = answers

    def send_and_wait(self, topic: str, *_: object, partition: int, **__: object) -> Any:  # type: ignore[override]
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return RecordMetadata(topic, partition, answer, 0)  # type: ignore[arg-type]

    def __del__(self) -> None:
        pass


def test_a_recorded_producer_records_what_it_sends(history: History, trial: Trial) -> None:
    lost = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "late", definite=False)
    producer = history.recorded(Sends([0, lost, 1]))
    assert producer.send_and_wait(FreshTopic("orders", 1), b"1").offset == 0
    with pytest.raises(KafkaError):
        producer.send_and_wait("orders", b"2", partition=0)
    producer.send_and_wait("orders", b"3", partition=0)
    with pytest.raises(ValueError, match=r"needs partition=\.\.\."):
        producer.send_and_wait("orders", b"4")
    with pytest.raises(TypeError, match="sends by send_and_wait"):
        producer.send("orders", b"5")
    assert [one["type"] for one in operations(history, trial)] == ["ok", "info", "ok"]


class Polls(SyncConsumer):
    """A consumer without a cluster."""

    def __init__(self, polls: list[list[tuple[str, int, bytes]]]) -> None:
        self.polls = polls

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset({TopicPartition("orders", 0)})

    def seek(self, partition: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        pass

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Any:
        return self.polls.pop(0)

    def __del__(self) -> None:
        pass


def test_a_recorded_consumer_records_polls_and_jumps(history: History) -> None:
    for value in range(3):
        send(history, value, value)
    consumer = history.recorded(Polls([[(KEY, 0, b"0")], [(KEY, 2, b"2")], [(KEY, 1, b"1")]]))
    consumer.poll()
    consumer.seek(TopicPartition("orders", 0), 2)
    consumer.poll()
    consumer.seek(TopicPartition("orders", 0), 1)
    consumer.poll()
    assert history.verdict.valid == "unknown"
    assert history.verdict.anomalies in ((), ("unseen",))


def test_other_clients_are_recorded_by_hand(history: History) -> None:
    with pytest.raises(TypeError, match="object is not one of Producer, SyncProducer"):
        history.recorded(object())


Theirs = namedtuple("Theirs", "topic partition offset value")


class Confluent:
    """A message of confluent-kafka: methods, no attributes."""

    def __init__(self, offset: int, value: bytes) -> None:
        self._offset, self._value = offset, value

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value


def test_one_value_in_three_types_is_one_number() -> None:
    values = RecordedValues()
    assert {values.number(7), values.number("7"), values.number(b"7")} == {7}
    assert values.number("seven") == values.number(b"seven") != values.number("eight")
    assert values.number("07") != 7
    assert values.number(b"\xff\xfe") != values.number(b"\xff\xfd")
    assert values.number(-1) > 1 << 50
    assert values.number(10**20) != values.number(10**20 + 1)


@pytest.mark.parametrize("value", [1.5, True, ["a"], {"id": 7}])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="set history"):
        RecordedValues().number(value)


@pytest.mark.parametrize(
    "records",
    [
        [("orders-2", 5, b"x")],
        ("orders-2", 5, b"x"),
        [Confluent(5, b"x")],
        Confluent(5, b"x"),
        [Theirs("orders", 2, 5, b"x")],
        {TopicPartition("orders", 2): [Theirs("orders", 2, 5, b"x")]},
        {TopicPartition("orders", 2): [ConsumerRecord("orders", 2, 5, 0, None, b"x", (), -1)]},
        [(TopicPartition("orders", 2), 5, b"x")],
        Theirs("orders", 2, 5, b"x"),
    ],
)
def test_records_of_every_client(records: Any) -> None:
    assert [one[:3] for one in read_records(records)] == [("orders-2", 5, b"x")]


HEADERS = (("a", b"1"), ("b", None))
Whole = namedtuple("Whole", "topic partition offset value key headers timestamp")


class WholeConfluent(Confluent):
    """A record of confluent-kafka, with everything."""

    def key(self) -> bytes:
        return b"k"

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [*HEADERS]

    def timestamp(self) -> tuple[int, int]:
        return 1, 99


@pytest.mark.parametrize(
    "record",
    [
        ConsumerRecord("orders", 2, 5, 99, b"k", b"x", HEADERS, -1),
        Whole("orders", 2, 5, b"x", b"k", HEADERS, 99),
        Whole("orders", 2, 5, b"x", b"k", [*HEADERS], 99),
        WholeConfluent(5, b"x"),
    ],
)
def test_the_checksum_of_a_record_is_the_same_by_every_client(record: Any) -> None:
    assert [one.checksum for one in read_records(record)] == [checksum_of(b"k", HEADERS, 99)]


@pytest.mark.parametrize(
    "record",
    [
        ("orders-2", 5, b"x"),
        Whole("orders", 2, 5, b"x", "decoded", HEADERS, 99),
        Whole("orders", 2, 5, b"x", b"k", {"a": b"1"}, 99),
        Whole("orders", 2, 5, b"x", b"k", [("a", 1)], 99),
        Whole("orders", 2, 5, b"x", b"k", HEADERS, None),
    ],
)
def test_a_record_without_all_its_parts_has_no_checksum(record: Any) -> None:
    assert [one.checksum for one in read_records(record)] == [0]


@pytest.mark.parametrize(("headers", "is_altered"), [(HEADERS, False), ((), True)])
def test_a_record_without_its_headers_is_found(
    history: History, headers: Any, is_altered: bool
) -> None:
    producer = history.recorded(Sends([0]))
    producer.send_and_wait("orders", b"7", b"k", partition=0, headers=HEADERS)
    with history.send(KEY, 8, checksum=checksum_of(b"k", HEADERS, 99)) as operation:
        operation.ok(offset=1)
    with history.poll() as operation:
        operation.ok(
            [
                ConsumerRecord("orders", 0, 0, 0, b"k", b"7", headers, -1),
                ConsumerRecord("orders", 0, 1, 99, b"k", b"8", headers, -1),
            ]
        )
    assert ("altered-record" in history.verdict.anomalies) is is_altered


def test_records_may_be_none_or_parts_and_others_are_refused() -> None:
    assert list(read_records(None)) == list(read_records({})) == list(read_records([])) == []
    records = [Confluent(5, b"id=7;name=x")]
    [found] = read_records(records, lambda raw: raw.partition(b";")[0][3:])
    assert found[:3] == ("orders-2", 5, b"7")
    with pytest.raises(TypeError, match="has no offset"):
        list(read_records([b"x"]))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_topic_is_copied_with_its_partitions(copied: Callable[[FreshTopic], FreshTopic]) -> None:
    twin = copied(FreshTopic("orders", 3))
    assert (twin, twin.partitions, type(twin)) == ("orders", 3, FreshTopic)


def test_a_topic_with_one_partition_names_it_and_a_test_its_topic() -> None:
    assert key_of(FreshTopic("orders", 1)) == "orders-0"
    assert key_of("orders-3") == "orders-3"
    topic = FreshTopic("orders", 3)
    assert topic.key(2) == "orders-2"
    with pytest.raises(ValueError, match=r"orders has 3 partitions: name one, as topic\.key\(0\)"):
        key_of(topic)
    with pytest.raises(TypeError, match="is no topic-partition"):
        key_of(7)
    assert topic_name("test_orders[kill all-3]") == "test_orders_kill_all_3"
    assert topic_name("\u00e4") == "test"
    assert len(topic_name("x" * 300)) == 80


OUT = Path("out")


@pytest.mark.parametrize(
    ("given", "seconds"), [(30, 30), ("30s", 30), ("500ms", 0.5), ("2m", 120), ("1.5", 1.5)]
)
def test_durations(given: object, seconds: float) -> None:
    assert duration_s(given) == seconds


@pytest.mark.parametrize("given", ["", "s", "30h", 0, -1, True, None, float("inf"), "nan"])
def test_what_is_no_duration(given: object) -> None:
    with pytest.raises(ValueError, match="write 30, '30s', '500ms' or '2m'"):
        duration_s(given)


def test_nodes_are_killed_unless_the_mark_says_otherwise() -> None:
    assert ChaosMark().settings(OUT, 1).faults == ("kill",)
    kinds = {action.fault.name for action in ChaosMark().simulation(OUT, 5).schedule.actions}
    assert kinds == {"kill"}
    assert ChaosMark(faults=()).settings(OUT, 1).faults == ()
    assert ChaosMark(faults=()).simulation(OUT, 1).schedule.actions == ()
    with pytest.raises(ValueError, match="simulated nodes have quorumlog's own"):
        ChaosMark(driver="confluent").simulation(OUT, 1)
    with pytest.raises(ValueError, match="simulated nodes have plain text, and no users"):
        ChaosMark(security={"tls": True}).simulation(OUT, 1)


def test_the_seed_may_choose_the_kinds_of_faults_in_simulation() -> None:
    mark = ChaosMark(faults=None)
    kinds = [
        {action.fault.name for action in mark.simulation(OUT, seed).schedule.actions}
        for seed in range(5)
    ]
    assert len({frozenset(chosen) for chosen in kinds}) > 1
    assert mark.simulation_command(7) == (
        *("quorumlog", "simulate", "nodes", "--seed", "7", "--duration", "10s"),
    )
    with pytest.raises(ValueError, match="only with simulated=True does the seed choose"):
        mark.settings(OUT, 1)


def test_the_command_of_a_real_run_says_all_that_differs() -> None:
    assert " ".join(ChaosMark().command(7)) == (
        "quorumlog chaos run --workload append_read --fault kill --duration 10s --seed 7"
    )
    mark = ChaosMark(
        faults=(), driver="confluent", nodes=5, partitions=1, options={"rate": 9}, config={"a": "b"}
    )
    assert " ".join(mark.command(7)) == (
        "quorumlog chaos run --workload append_read --fault none --duration 10s --seed 7 "
        "--driver confluent --nodes 5 --partitions 1 --workload-option rate=9 --config a=b"
    )


def test_the_command_of_a_simulated_run_says_all_that_differs() -> None:
    assert " ".join(ChaosMark(faults=("kill",), mutant="x").simulation_command(7)) == (
        "quorumlog simulate nodes --seed 7 --duration 10s --faults kill --mutant x"
    )
    apart = ChaosMark(faults=("kill",), controllers=3, brokers=2)
    assert apart.simulation_command(7)[-4:] == ("--controllers", "3", "--brokers", "2")
    other = ChaosMark(faults=None, workload="list_offsets", options={"rate": 9}, partitions=1)
    assert " ".join(other.simulation_command(7)) == (
        "quorumlog simulate nodes --seed 7 --duration 10s --workload list_offsets --partitions 1 "
        "--workload-option rate=9"
    )


def test_two_tests_have_two_directories() -> None:
    names = [
        "tests/a.py::test_x",
        "tests/a.py::test_x[1-2]",
        "tests/a.py::test_x[1/2]",
        "tests-a.py::test_x",
        "tests/a.py::test_x[" + "y" * 200 + "]",
        "tests/a.py::test_x[" + "y" * 201 + "]",
        "tests/a.py::test_x[\u00e4 b]",
        "tests/a.py::test_x[\u00e4-b]",
    ]
    directories = [directory_name(name) for name in names]
    assert len(set(directories)) == len(names)
    assert directories[0] == "tests-a.py-test_x"
    assert all(len(name) < 120 and "/" not in name for name in directories)
