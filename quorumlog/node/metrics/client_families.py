"""The families that clients report (KIP-714), under their own names behind `quorumlog_client_`."""

import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from quorumlog.broker.telemetry.core.instances import ClientInstances, Instance, id_text
from quorumlog.broker.telemetry.core.otlp import Point
from quorumlog.node.metrics.exposition import Family, Sample, labels

FAMILIES_MAX: Final = 500
PREFIX: Final = "quorumlog_client_"
_STANDARD: Final = "org.apache.kafka."  # the start of KIP-714's names
_OTHER: Final = re.compile(r"[^a-zA-Z0-9_]")


def client_families(instances: ClientInstances, now_ms: int) -> Iterator[Family]:
    """Yield the reports of clients, and then their metrics, at most FAMILIES_MAX families.

    If clients report one name as different kinds, the kind of the first client is shown.
    """
    shown = instances.shown(now_ms)
    pushes = [
        (labels({"error": error.name}), count) for error, count in sorted(instances.pushes.items())
    ]
    yield Family("quorumlog_telemetry_pushes_total", "counter", "Reports of clients.", pushes)
    text = "Clients that report, or may report, metrics."
    yield Family("quorumlog_telemetry_instances", "gauge", text, [("", len(instances))])
    text = "Values of metrics of clients beyond the limit for one client."
    dropped: list[Sample] = [("", instances.dropped_points)]
    yield Family("quorumlog_telemetry_dropped_points_total", "counter", text, dropped)
    families: dict[str, Family] = {}
    samples: dict[str, dict[str, Sample]] = {}
    for instance_id, instance in shown:
        for point in instance.series.values():
            family = _family(point)
            base = family.name.removesuffix("_total")
            if base not in families and len(families) >= FAMILIES_MAX:
                continue
            if families.setdefault(base, family).kind == family.kind:
                found = samples.setdefault(base, {})
                found.update((where, (where, value)) for where, value in _samples(
                    point, _where(id_text(instance_id), instance, point)
                ))  # fmt: skip
    for base, family in sorted(families.items()):
        yield family._replace(samples=samples[base].values())


def _family(point: Point) -> Family:
    name = PREFIX + _label(point.name.removeprefix(_STANDARD))
    base = name.removesuffix("_total")
    if point.buckets is not None:
        return Family(base, "histogram", "Reported by clients.", ())
    if point.is_sum:
        return Family(f"{base}_total", "counter", "Reported by clients.", ())
    return Family(base, "gauge", "Reported by clients.", ())


def _label(name: str) -> str:
    return _OTHER.sub("_", name)


def _where(instance_id: str, instance: Instance, point: Point) -> dict[str, object]:
    where: dict[str, object] = {}
    for name, value in point.labels:
        # Names with two underscores in front are Prometheus' own.
        where.setdefault(
            f"client_{_label(name)}" if name[0] in "_0123456789" else _label(name), value
        )
    for reserved in ("le", "quantile"):
        where.pop(reserved, None)
    return where | {"client_instance_id": instance_id, "client_id": instance.client.client_id}


def _samples(point: Point, where: dict[str, object]) -> Iterator[Sample]:
    if point.buckets is None:
        yield labels(where), point.value
        return
    bounds, counts = point.buckets
    sums = [*accumulate(counts)]
    for bound, count in zip((*bounds, "+Inf"), sums, strict=True):
        yield "_bucket" + labels({**where, "le": bound}), count
    yield "_sum" + labels(where), point.value
    yield "_count" + labels(where), sums[-1]
