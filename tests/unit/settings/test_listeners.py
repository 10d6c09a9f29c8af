"""The named listeners of a node: Kafka's rules for their settings, and the addresses that follow.

Sources: KIP-103, KIP-291, KafkaConfigTest of Apache Kafka.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.metadata_quorum.image import BrokerImage
from quorumlog.metadata_quorum.image.details import Endpoint
from quorumlog.settings.kinds import INT_MAX, BadValue
from quorumlog.settings.listeners import (
    Address,
    SecurityProtocol,
    check_listener_setting,
    read_listeners,
)
from quorumlog.wire.codec.identifiers import BrokerId

TWO = {
    "listeners": "PLAINTEXT://127.0.0.1:9092, external://0.0.0.0:19092",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:9092,EXTERNAL://host.docker.internal:29092",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,external:PLAINTEXT",
}


def test_two_listeners_have_an_address_to_bind_and_one_to_advertise_each() -> None:
    read = read_listeners(TWO)
    assert [*read.by_name] == ["PLAINTEXT", "EXTERNAL"]
    external = read.by_name["EXTERNAL"]
    assert (str(external.bind), str(external.advertised)) == (
        "0.0.0.0:19092",
        "host.docker.internal:29092",
    )
    assert external.protocol is SecurityProtocol.PLAINTEXT
    assert read.inter_broker.name == "PLAINTEXT"
    other = read_listeners({**TWO, "inter.broker.listener.name": "External"})
    assert other.inter_broker is other.by_name["EXTERNAL"]
    assert str(other.inter_broker_address) == "host.docker.internal:29092"


def test_a_listener_that_is_not_advertised_is_bound_nevertheless() -> None:
    read = read_listeners({**TWO, "advertised.listeners": "PLAINTEXT://127.0.0.1:9092"})
    assert read.by_name["EXTERNAL"].advertised is None


def test_an_ipv4_and_an_ipv6_address_may_share_a_port() -> None:
    read = read_listeners(
        {
            **TWO,
            "listeners": "PLAINTEXT://127.0.0.1:9092,EXTERNAL://[::1]:9092",
            "advertised.listeners": "",
        }
    )
    assert read.by_name["EXTERNAL"].bind == Address(host="::1", port=9092)


def test_an_empty_host_means_all_interfaces() -> None:
    settings = {"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://h:9092"}
    assert read_listeners(settings).inter_broker.bind == Address(host="", port=9092)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"listeners": "PLAINTEXT://a:1,plaintext://b:2"}, "PLAINTEXT is there twice"),
        ({"listeners": "PLAINTEXT://a:1,EXTERNAL://a:1"}, "must have a different port"),
        ({"listeners": "PLAINTEXT://0.0.0.0:1,EXTERNAL://[::]:1"}, "must have a different port"),
        ({"listeners": "PLAINTEXT://a:1,E X://a:2"}, "a listener's name has letters"),
        ({"listeners": "PLAINTEXT://a:1,EXTERNAL://a"}, "listeners=a: write it as host:port"),
        ({"listeners": "PLAINTEXT://a:1,EXTERN://a:2"}, "is defined for the listener EXTERN"),
        ({"listeners": "PLAINTEXT://a:1,EXTERN://a:2"}, "did you mean EXTERNAL?"),
        ({"advertised.listeners": "PLAINTEXT://a:1,EXTRNAL://b:2"}, "did you mean EXTERNAL?"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "advertise a routable address"),
        ({"advertised.listeners": "EXTERNAL://a:1"}, "inter.broker.listener.name=PLAINTEXT: it"),
        ({"inter.broker.listener.name": "INTERNAL"}, "did you mean EXTERNAL?"),
        (
            {
                "inter.broker.listener.name": "EXTERNAL",
                "security.inter.broker.protocol": "PLAINTEXT",
            },
            "set only one of them",
        ),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "write it as NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "A:PLAINTEX"}, "did you mean PLAINTEXT?"),
        ({"listener.security.protocol.map": "A:PLAINTEXT,a:PLAINTEXT"}, "a is there twice"),
        (
            {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:SSL"},
            "the listener EXTERNAL: listener.name.external.ssl.keystore.location is not set",
        ),
        ({"controller.listener.names": "external"}, "leave EXTERNAL out of listeners"),
        ({"listener.name.extrnal.max.connections": "1"}, "did you mean EXTERNAL?"),
        ({"listener.name.external.max.connections": "x"}, "=x: Not a number"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    changes: dict[str, str], message: str
) -> None:
    settings = {**TWO, **changes}
    if "listeners" in changes:
        del settings["advertised.listeners"]
        settings["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT"
    with pytest.raises(BadValue) as refused:
        read_listeners(settings)
    assert message in str(refused.value)


def test_a_setting_of_one_listener_is_kept_for_that_listener() -> None:
    name = "listener.name.external.max.connections"
    check_listener_setting(name, "7")
    read = read_listeners({**TWO, name: "7"})
    assert [one.max_connections for one in read.by_name.values()] == [INT_MAX, 7]


def test_a_listener_may_have_a_rate_of_new_connections() -> None:
    name = "listener.name.external.max.connection.creation.rate"
    read = read_listeners({**TWO, name: "3"})
    assert [one.connection_rate for one in read.by_name.values()] == [INT_MAX, 3]
    assert [one.is_inter_broker for one in read.by_name.values()] == [True, False]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("listener.name.external.ssl.cipher.suites", "not supported; quorumlog has no"),
        ("listener.name.external.sasl.kerberos.service.name", "not supported; quorumlog has"),
        ("listener.name.external.max.connection", "did you mean max.connections?"),
        ("listener.name.external.num.partitions", "num.partitions cannot be set for one listener"),
        ("listener.name.external", "write it as listener.name.<name>.<setting>"),
    ],
)
def test_other_settings_of_one_listener_are_refused(name: str, message: str) -> None:
    with pytest.raises(BadValue) as refused:
        check_listener_setting(name, "x")
    assert str(refused.value).startswith(f"{name}: ")
    assert message in str(refused.value)
    if "not supported" in message:
        check_listener_setting(name, "")


NAMES = st.lists(
    st.from_regex(r"[A-Z][A-Z0-9_-]{0,8}", fullmatch=True), min_size=1, max_size=5, unique=True
)


@given(names=NAMES, last=st.integers(1_000, 60_000))
def test_each_listener_is_read_back_with_its_own_addresses(names: list[str], last: int) -> None:
    ports = {name: last + index for index, name in enumerate(names)}
    read = read_listeners(
        {
            "listeners": ",".join(f"{name}://[::1]:{port}" for name, port in ports.items()),
            "advertised.listeners": ",".join(f"{name}://{name}:{ports[name]}" for name in names),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
            "inter.broker.listener.name": names[-1].lower(),
        }
    )
    assert {name: one.bind.port for name, one in read.by_name.items()} == ports
    assert all(
        one.advertised == Address(host=one.name, port=ports[one.name])
        for one in read.by_name.values()
    )
    assert read.inter_broker.name == names[-1]


# --- the image: a client gets the address of its own listener ---


def registered(*endpoints: Endpoint) -> BrokerImage:
    return BrokerImage(
        broker_id=BrokerId(1),
        broker_epoch=1,
        incarnation_id="i",
        host="inside",
        port=1,
        control_address="c:1",
        endpoints=endpoints,
    )


def test_a_broker_without_endpoints_has_the_default_listener_alone() -> None:
    assert registered().address_at("PLAINTEXT") == ("inside", 1)
    assert registered().address_at("EXTERNAL") is None


def test_a_broker_with_endpoints_has_no_other_listener() -> None:
    broker = registered(
        Endpoint(name="IN", host="inside", port=1), Endpoint(name="OUT", host="o", port=2)
    )
    assert broker.address_at("OUT") == ("o", 2)
    assert broker.address_at("PLAINTEXT") is None


def test_sasl_listeners_read_only_their_own_demand_of_certificates() -> None:
    """KIP-684: without the listener's prefix, ssl.client.auth is for listeners without SASL."""
    values = {
        "listeners": "A://h:1,B://h:2,C://h:3",
        "listener.security.protocol.map": "A:SSL,B:SASL_SSL,C:SASL_SSL",
        "inter.broker.listener.name": "A",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "server.pem",
        "ssl.client.auth": "required",
        "listener.name.c.ssl.client.auth": "requested",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    }
    demands = {
        name: one.tls and one.tls.client_auth.value
        for name, one in read_listeners(values).by_name.items()
    }
    assert demands == {"A": "required", "B": "none", "C": "requested"}
