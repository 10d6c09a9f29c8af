from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from quorumlog.client import Admin, Consumer, Producer
from quorumlog.client.settings import (
    AdminOptions,
    AdminSettings,
    ConsumerOptions,
    ConsumerSettings,
    ProducerOptions,
    ProducerSettings,
    addresses,
)

KINDS = [
    (AdminSettings, AdminOptions),
    (ConsumerSettings, ConsumerOptions),
    (ProducerSettings, ProducerOptions),
]


@pytest.mark.parametrize(("settings", "options"), KINDS)
def test_options_and_settings_are_in_step(settings: Any, options: Any) -> None:
    types = get_type_hints(settings)
    names = {field.name for field in fields(settings)} - {"bootstrap_servers"}
    assert {name: types[name] for name in names} == get_type_hints(options)


def test_a_mistyped_setting_names_the_nearest() -> None:
    options: dict[str, Any] = {"linger": 5}
    with pytest.raises(TypeError, match="unknown setting 'linger'; did you mean 'linger_ms'"):
        Producer("x:1", **options)
    options = {"sesion_timeout_ms": 5}
    with pytest.raises(TypeError, match="did you mean 'session_timeout_ms'"):
        Consumer("x:1", **options)
    options = {"zzz": 5}
    with pytest.raises(TypeError, match=r"unknown setting 'zzz'$"):
        Admin("x:1", **options)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"acks": 2}, "acks must be"),
        ({"acks": 1, "enable_idempotence": True}, "enable_idempotence needs acks"),
        ({"max_in_flight": 6}, "at most 5 requests in flight"),
        ({"delivery_timeout_ms": 1_000}, "delivery_timeout_ms must be at least"),
        ({"buffer_memory": 10}, "buffer_memory must hold one batch"),
    ],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Producer("x:1", **options)


def test_idempotence_is_on_unless_acks_forbids_it() -> None:
    assert ProducerSettings(bootstrap_servers="x:1").idempotent
    assert not ProducerSettings(bootstrap_servers="x:1", acks=1, max_in_flight=9).idempotent
    assert not ProducerSettings(bootstrap_servers="x:1", enable_idempotence=False).idempotent


def test_bootstrap_servers() -> None:
    assert addresses("a:1, b:2") == [("a", 1), ("b", 2)]
    assert addresses(["[::1]:9092"]) == [("::1", 9092)]
    for wrong in ("", "a", "a:b", ":1"):
        with pytest.raises(ValueError, match="bootstrap_servers"):
            addresses(wrong)
