"""The steps of a controller under test: a step is a method's name and its arguments."""

from hypothesis import strategies as st

ALL = (1, 2, 3, 4)
BROKERS = st.sampled_from(ALL)
TROUBLED = st.integers(1, 3)
NAMES = st.sampled_from(["a", "b"])
FATES = ("killed", "closed", "lost_power", "wiped")
WRITERS = {"register", "come_back", "died", "unregister", "wait"}  # whose decisions may be split
RARELY = st.sampled_from([False] * 7 + [True])
TARGETS = st.permutations(ALL).flatmap(lambda order: st.integers(1, 4).map(lambda n: order[:n]))
STEPS = st.one_of(
    st.tuples(st.just("register"), BROKERS, st.sampled_from("xy"), st.sampled_from([0, 0, 1])),
    st.tuples(st.just("heartbeat"), BROKERS, RARELY, RARELY, RARELY),
    st.tuples(st.just("heartbeat"), BROKERS, st.just(False), st.just(False), st.just(False)),
    st.tuples(st.just("died"), BROKERS),
    st.tuples(st.just("died_half_way"), BROKERS, st.integers(1, 3)),
    st.tuples(st.just("come_back"), BROKERS, st.sampled_from(FATES)),
    st.tuples(st.just("come_back"), BROKERS, st.sampled_from(FATES)),
    st.tuples(st.just("unregister"), BROKERS),
    st.tuples(st.just("wait"), st.sampled_from([100, 5000, 9000])),
    st.tuples(st.just("create"), NAMES, st.integers(1, 3), st.integers(1, 4)),
    st.tuples(st.just("grow"), NAMES, st.integers(1, 4)),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("min_isr"), NAMES, st.integers(1, 3)),
    st.tuples(st.just("cluster_min_isr"), st.integers(1, 3)),
    st.tuples(st.just("prefer"), NAMES, st.integers(0, 1)),
    st.tuples(st.just("reassign"), NAMES, st.integers(0, 1), st.none() | TARGETS),
    st.tuples(st.just("alter"), NAMES, st.integers(0, 1), st.integers(0, 15), RARELY, RARELY),
    st.tuples(st.just("alter"), NAMES, st.just(0), st.just(15), st.just(False), st.just(False)),
    st.tuples(st.just("producer_ids"), BROKERS),
    st.tuples(st.just("fail_over"), st.integers(0, 3)),
)
SCHEDULES = st.lists(STEPS, min_size=5, max_size=40)
LET_IN = st.tuples(st.just("heartbeat"), TROUBLED, st.just(False), st.just(False), st.just(False))
JOIN = st.tuples(
    st.just("alter"), st.just("a"), st.just(0), st.just(7), st.just(False), st.just(False)
)
TROUBLES = st.one_of(
    st.tuples(st.just("prefer"), st.just("a"), st.just(0)),
    st.tuples(st.just("reassign"), st.just("a"), st.just(0), st.none() | TARGETS),
    st.tuples(st.just("min_isr"), st.just("a"), st.integers(1, 3)),
    st.tuples(st.just("cluster_min_isr"), st.integers(1, 3)),
    st.tuples(st.just("died"), TROUBLED),
    st.tuples(st.just("come_back"), TROUBLED, st.sampled_from(FATES)),
    st.tuples(st.just("unregister"), TROUBLED),
    LET_IN,
    LET_IN,
    JOIN,
    st.tuples(st.just("fail_over"), st.integers(0, 2)),
)
