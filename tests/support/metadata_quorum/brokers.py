"""Brokers as a registration, a record and an image show them, with the usual fields."""

from typing import Any

from quorumlog.metadata_quorum.controller_client import BrokerRegistration
from quorumlog.metadata_quorum.image.model import BrokerImage
from quorumlog.metadata_quorum.image.records import RegisterBroker
from quorumlog.wire.codec.identifiers import BrokerId

AT: dict[str, Any] = {"host": "h", "port": 1, "control_address": "h:2"}


def broker_image(broker_id: int = 1, epoch: int = 5, **more: Any) -> BrokerImage:
    given = {"broker_id": BrokerId(broker_id), "broker_epoch": epoch, "incarnation_id": "a"}
    return BrokerImage(**{**AT, **given, **more})


def broker_record(broker_id: int = 1, epoch: int | None = None, **more: Any) -> RegisterBroker:
    given = {"broker_id": BrokerId(broker_id), "broker_epoch": epoch, "incarnation_id": "a"}
    return RegisterBroker(**{**AT, **given, **more})


def broker_registration(broker_id: int = 1, **more: Any) -> BrokerRegistration:
    given = {"broker_id": BrokerId(broker_id), "incarnation_id": "a", "directory_id": "d"}
    return BrokerRegistration(**{**AT, **given, **more})
