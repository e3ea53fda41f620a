"""A delivery's manifest reads as it was written, by this version of Sluice and by others."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from etl.common.errors import NeedsPerson
from etl.delivery.ledger_entry import Entry
from etl.delivery.manifest import DeliveryManifest
from etl.ledger.inputs import Input
from etl.ledger.offsets import Range
from etl.quality.verdict import RuleResult, Severity

# As commits wrote them before the manifest had a type: of a stream that keeps state, of one that reads topics, of a replay
# and of a release. Of the replay's metrics, rules and results two or three were kept.
RECORDED = Path(__file__).parent / "manifests"
NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))
URI = "s3://lake/warehouse/events/deliveries/7-0123abcd.json"


def recorded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return content


def read(content: dict[str, Any]) -> DeliveryManifest:
    return DeliveryManifest.from_json(json.dumps(content), uri=URI)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_recorded_is_read_and_written_again_to_the_letter(name: str) -> None:
    text = (RECORDED / f"{name}.json").read_text()
    manifest = DeliveryManifest.from_json(text, uri=URI)
    assert manifest.to_json() == text
    assert DeliveryManifest.from_json(manifest.to_json(), uri=URI) == manifest


def test_a_recorded_replay_is_read_as_it_was() -> None:
    manifest = read(recorded("replay"))
    assert (manifest.entry.kind, manifest.entry.delivery_id, manifest.supersedes) == ("replay", 4, (1,))
    assert manifest.inputs[1] == Input(
        path="flights/dt=2013-01-02/flights.csv",
        uri="file:///srv/sluice/landing/flights/dt=2013-01-02/flights.csv",
        size=85_942,
        mtime_ms=1_795_729_962_496,
        etag=None,
        source=1,
    )
    assert [one.rows for one in manifest.quarantine] == [1]
    assert sum(one.rows for one in manifest.data) == manifest.entry.delivered == 1_784
    verdict = manifest.verdict
    assert (verdict.success, verdict.stops, verdict.quarantined) == (False, (), 1)
    broken: RuleResult = verdict.results[-1]
    assert (broken.success, broken.severity, broken.unexpected_count) == (False, Severity.WARNING, 1)
    assert broken.result["expectation_config"]["meta"]["name"] == broken.reason
    assert manifest.columns[0].earliest is not None
    assert manifest.columns[1].distinct_estimate() == pytest.approx(194, rel=0.01)


def test_recorded_offsets_state_and_origin_are_read_as_they_were() -> None:
    topics, state, release = (read(recorded(name)) for name in ("topics", "state", "release"))
    assert topics.ranges[1] == Range(
        source=0, topic="events", topic_id="Zk3xP0aLT3m2V1bJ8q5yWg", partition=1, start=2, end=6
    )
    assert state.state[1] == "update mode"
    assert (state.entry.watermark_ms, state.entry.time_ms) == (0, 1_795_730_292_887)
    assert (release.entry.kind, release.entry.released_from, release.checkpoint) == ("release", 5, None)


@pytest.mark.parametrize("name", NAMES)
def test_what_older_code_did_not_write_yet_has_a_default(name: str) -> None:
    later = {"version", "state", "ranges", "supersedes", "columns"}
    later |= {field.name for field in fields(Entry) if field.default is None or field.name == "kind"}
    old = {key: value for key, value in recorded(name).items() if key not in later}
    of_rules = {field.name for field in fields(RuleResult) if field.default is None}
    old["rules"] = [{key: value for key, value in one.items() if key not in of_rules} for one in old["rules"]]
    manifest = read(old)
    assert (manifest.entry.kind, manifest.state, manifest.ranges, manifest.supersedes) == (
        "stream",
        (),
        (),
        (),
    )
    assert manifest.entry.records is manifest.entry.time_ms is None
    assert manifest.data == read(recorded(name)).data


@pytest.mark.parametrize("name", NAMES)
def test_what_newer_code_writes_besides_is_left_out(name: str) -> None:
    content = recorded(name)
    more = {"unheard_of": 1}
    longer = {
        key: [one | more for one in value]
        if key in ("inputs", "ranges", "data", "rules", "columns")
        else value
        for key, value in content.items()
    }
    assert read(longer | more) == read(content)


@pytest.mark.parametrize("version", [2, 0, "1.1"])
def test_a_version_that_is_not_known_is_refused(version: object) -> None:
    with pytest.raises(
        NeedsPerson, match=f"is of version {version}, and this Sluice reads version 1"
    ) as refused:
        read({"version": version, "all": "else"})
    assert URI in refused.value.seen
    assert "the version of Sluice that wrote it" in refused.value.remedy
