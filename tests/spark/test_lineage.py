"""A delivery is told by one OpenLineage event, whose outbox row its commit writes; a receiver that is away fails no run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import attr
import pytest
from openlineage.client import facet_v2
from pydantic import SecretStr

from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from tests.support.data.orders import NAME, NEGATIVE, orders
from tests.support.home import Home
from tests.support.receivers import Receiver, receiving

PARENT = "airflow/shop.orders/0190a1b2-0000-7000-8000-000000000001"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def told(home: Home, receiver: Receiver) -> Home:
    """Return the same place, with its events sent to the receiver."""
    settings = home.place.settings.model_copy(update={"openlineage": SecretStr(receiver.address)})
    return replace(home, place=replace(home.place, settings=settings))


def events(receiver: Receiver) -> list[dict[str, Any]]:
    assert {path for path, _ in receiver.taken} <= {"/api/v1/lineage"}
    return [json.loads(body) for _, body in receiver.taken]


def facets_of(event: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from event["run"]["facets"].items()
    yield from event["job"]["facets"].items()
    for one in [*event["inputs"], *event["outputs"]]:
        for kind in ("facets", "inputFacets", "outputFacets"):
            yield from one.get(kind, {}).items()


def classes() -> dict[str, type[Any]]:
    """Return the library's facets by the address of the schema that each was generated from."""
    modules = [
        one
        for one in vars(facet_v2).values()
        if getattr(one, "__name__", "").endswith(("_dataset", "_run", "_job"))
    ]
    found = [one for module in modules for one in vars(module).values() if attr.has(one)]
    return {one._get_schema(): one for one in found if hasattr(one, "_get_schema")}


def test_each_delivery_is_one_event_sent_once_and_again_when_asked(
    home: Home, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", PARENT)
    home.land("orders/a.jsonl", orders(0, 12, negative=[3]), ["{broken"])
    receiver.answer = 503
    with caplog.at_level(logging.WARNING, "sluice"):
        done = told(home, receiver).run()
    assert done.outcome == "done"
    assert "What was delivered stays so; `sluice lineage` sends what is left" in caplog.text
    assert "answered 503" in caplog.text
    assert receiver.taken == []
    assert home.ask("SELECT count(*) FROM sluice.lineage_event WHERE sent_at IS NULL") == [(1,)]

    receiver.answer = 200
    home.land("orders/b.jsonl", orders(20, 6))
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", "shop/nightly/manual-1")
    told(home, receiver).run()  # sends what the run before could not
    first, second = events(receiver)
    assert home.ask("SELECT count(*) FROM sluice.lineage_event WHERE sent_at IS NULL") == [(0,)]
    told(home, receiver).run()
    assert len(receiver.taken) == 2

    assert_facets_are_of_the_library(first, second)
    assert_parents_are_as_named(first, second)
    assert first["eventType"] == "COMPLETE"
    assert first["job"]["name"] == NAME
    assert_it_says_what_was_made_of_what(home, first)

    [(number, _)] = home.ask("SELECT min(delivery_id), 0 FROM sluice.delivery")
    chosen = plan(home.place, home.pipeline(), Selection(deliveries=((number, number),)))
    replay(told(home, receiver).place, home.pipeline(), chosen, who="test", spark=home.spark)
    again = events(receiver)[2]
    assert again["run"]["facets"]["sluice_delivery"]["replaces"] == [number]

    monkeypatch.setenv("SLUICE_OPENLINEAGE", receiver.address)
    resent = home.sluice("lineage", NAME, "--deliveries", f"{number}", "--json")
    assert (resent.returncode, json.loads(resent.stdout)) == (0, {"sent": 1, "problems": []})
    assert events(receiver)[3] == first
    mistyped = home.sluice("lineage", "ordres")
    assert (mistyped.returncode, "ordres" in mistyped.stderr) == (2, True)
    receiver.answer = 400
    refused = home.sluice("lineage", NAME, "--deliveries", f"{number}")
    assert refused.returncode == 75
    assert f"answered 400 to the event of delivery {number}" in refused.stderr


def assert_facets_are_of_the_library(*found: Mapping[str, Any]) -> None:
    known = classes()
    for name, facet in [facet for event in found for facet in facets_of(event)]:
        assert facet["_producer"].startswith("urn:sluice:")
        if name != "sluice_delivery":
            fields = {key: value for key, value in facet.items() if not key.startswith("_")}
            assert fields.keys() <= {one.name for one in attr.fields(known[facet["_schemaURL"]])}


def assert_parents_are_as_named(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    above = first["run"]["facets"]["parent"]
    assert "/".join([above["job"]["namespace"], above["job"]["name"], above["run"]["runId"]]) == PARENT
    below = second["run"]["facets"]["parent"]
    assert (below["job"]["namespace"], below["job"]["name"]) == ("shop", "nightly")
    assert below["run"]["runId"] == str(uuid5(NAMESPACE_URL, "shop/nightly/manual-1"))


def assert_it_says_what_was_made_of_what(home: Home, first: Mapping[str, Any]) -> None:
    own = first["run"]["facets"]["sluice_delivery"]
    assert (own["delivered"], own["held"]) == (11, {"rows": 2, "malformed": 1, "late": 0})
    folder = next(one for one in first["inputs"] if one["name"] == f"{home.landing}/orders")
    assert folder["inputFacets"]["subset"]["inputCondition"]["locations"] == [home.uri("orders/a.jsonl")]
    assert f"{home.landing}/reference/shops.csv" in {one["name"] for one in first["inputs"]}
    table, lake = first["outputs"]
    assert table["name"].endswith(".warehouse.orders")
    assert f"{lake['namespace']}/{lake['name']}" == f"{home.place.services.lake}/warehouse/orders"
    assert {one["outputFacets"]["outputStatistics"]["rowCount"] for one in (table, lake)} == {11}
    columns = [one["name"] for one in lake["facets"]["schema"]["fields"]]
    assert columns == ["id", "shop", "amount", "at", "city"]
    made_of = {
        name: [(one["name"], one["field"], one["transformations"]) for one in column["inputFields"]]
        for name, column in table["facets"]["columnLineage"]["fields"].items()
    }
    shops, same = f"{home.landing}/reference/shops.csv", [{"type": "DIRECT", "subtype": "IDENTITY"}]
    assert made_of == {name: [(folder["name"], name, same)] for name in columns[:4]} | {
        "city": [(shops, "city", same)]
    }
    decides = {(one["name"], one["field"]) for one in lake["facets"]["columnLineage"]["dataset"]}
    assert decides == {(folder["name"], "shop"), (shops, "shop")}
    rules = {one["name"]: one for one in table["facets"]["dataQualityAssertions"]["assertions"]}
    assert len(rules) == 3
    found = rules[NEGATIVE]
    assert (found["success"], found["severity"], found["column"]) == (False, "warn", "amount")
    assert found["params"] == {"rows": 12, "unexpected": 1}


def test_nothing_is_noted_sent_or_imported_while_it_is_off(home: Home) -> None:
    home.land("orders/a.jsonl", orders(0, 3))
    home.run()
    assert home.ask("SELECT count(*) FROM sluice.lineage_event") == [(0,)]
    unset = home.sluice("lineage")
    assert unset.returncode == 2
    assert "SLUICE_OPENLINEAGE" in unset.stderr
