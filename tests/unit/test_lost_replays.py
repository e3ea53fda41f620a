"""How a replay, a release or a withdrawal that PostgreSQL lost is had again: by the command that is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from etl.delivery.manifest import DeliveryManifest
from etl.ledger.inputs import Input
from etl.runs.recovery.lost_deliveries import LostDelivery, how_to_redo, is_missed

RECORDED = DeliveryManifest.from_json(
    (Path(__file__).parent / "manifests" / "replay.json").read_text(), uri="replay.json"
)


def lost(
    number: int,
    kind: str,
    *,
    supersedes: tuple[int, ...] = (),
    read: Sequence[str] = (),
    released_from: int | None = None,
) -> LostDelivery:
    """Return a delivery of `orders` beside the stream that the lake has and the ledger has not."""
    entry = replace(
        RECORDED.entry, pipeline="orders", delivery_id=number, kind=kind, released_from=released_from
    )
    inputs = tuple(Input(path=path, uri="", size=1, mtime_ms=1, etag=None, source=0) for path in read)
    manifest = replace(RECORDED, entry=entry, supersedes=supersedes, inputs=inputs)
    return LostDelivery(manifest=manifest, uri="", whole=True)


def test_what_a_lost_load_had_is_named() -> None:
    advice = how_to_redo(lost(7, "replay", read=["orders/dt=2024-02-26/a.jsonl"]), {}, set())
    assert "dt=2024-02-26/a.jsonl: `sluice replay orders --interval START END`" in advice


def test_what_lost_replays_had_replaced_is_named_as_it_is_now() -> None:
    all_lost = [
        lost(7, "replay", supersedes=(3, 4, 6), read=["old", "new"]),
        lost(8, "release", released_from=7),
        lost(9, "replay", supersedes=(7, 8)),
    ]
    advice = [how_to_redo(one, {one.delivery_id: one for one in all_lost}, {"new"}) for one in all_lost]
    assert "`sluice replay orders --deliveries 3..4,6`; 1 file of history" in advice[0]
    assert "such as old:" in advice[0]
    assert "`sluice quarantine list orders --delivery 3`, " in advice[1]
    assert advice[2].endswith("is in force again: `sluice replay orders --deliveries 3..4,6`")


def test_a_lost_load_is_missed_until_its_files_are_had_again() -> None:
    one = lost(7, "replay", read=["old"])
    assert is_missed(one, {7: one}, set(), set(), set())
    assert not is_missed(one, {7: one}, set(), set(), {"old"})
    assert not is_missed(replace(one, known=True), {}, set(), set(), set()), "it failed, and has told so"


def test_a_lost_withdrawal_is_missed_while_what_it_had_taken_out_is_in_force() -> None:
    one = lost(9, "withdrawal", supersedes=(3, 5, 7))
    all_lost = {7: lost(7, "release", released_from=3), 9: one}
    assert how_to_redo(one, all_lost, set()).endswith(
        "is in force again: `sluice recover orders --before 3 --why WHY`"
    )
    assert is_missed(one, all_lost, {5}, set(), set())
    assert not is_missed(one, all_lost, {4}, {3}, set())


def test_a_lost_replay_is_missed_while_what_it_had_replaced_is_in_force() -> None:
    one = lost(7, "replay", supersedes=(3,), read=["old"])
    assert is_missed(one, {7: one}, {3}, set(), {"old"})
    assert not is_missed(one, {7: one}, {4}, {3}, {"old"})
