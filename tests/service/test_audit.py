"""An audit is clean when both sinks hold what was delivered, and it names whatever is not so."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg2 import sql

from etl.common.database import TIMEOUTS, connect
from etl.common.errors import Busy, NeedsPerson, TableRefused
from etl.common.outages import raising_service_errors
from etl.common.steps import Step
from etl.delivery import stage
from etl.operations.audit import audit as audit_module
from etl.operations.audit.audit import audit
from etl.operations.audit.recount import BEYOND, Identity, Recount, Tally, table_rows
from etl.operations.audit.report import AuditReport
from etl.pipeline import Append, Replace, Upsert, month
from etl.services import Services
from etl.sinks.lake.lake import Lake
from etl.sinks.open import open_sinks
from etl.sinks.warehouse.copy_out import CHUNK_BYTES
from tests.support.delivering import Delivering

pytestmark = pytest.mark.long

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("on", pa.date32()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("amount", pa.decimal128(20, 4)),
        ("x", pa.float64()),
        ("y", pa.float32()),
        ("small", pa.int32()),
        ("yes", pa.bool_()),
    ]
)
HOUR = 3_600_000_000
TEXTS = ["", "a,b", 'q"uote', "line\nbreak", "cr\r\nlf", "\\.", "\\N", "NULL", "naïve ☃", " pad ", "t", None]
FLOATS = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 0.1, 1 / 3, None]
FAR = [-210_866_803_200_000_000, -62_135_596_800_000_001, 253_402_300_800_000_000, 2**63 - 1]
TIMES = [0, 1, -1, *FAR, None]
DAYS = [0, -1, -2_440_588, 2_145_031_948, 2_932_897, None]


def rows(count: int, start: int = 0) -> pa.Table:
    """Rows with the values that are lost most easily on the way."""

    def cycled(values: list[object], kind: pa.DataType) -> pa.Array:
        found = [values[place % len(values)] for place in range(start, start + count)]
        return pa.array(found, kind)

    moments = pa.array([hour % 72 * HOUR for hour in range(start, start + count)], pa.int64())
    amounts = [Decimal("0.0000"), Decimal("-1234567890123456.7891"), Decimal("9999999999999999.9999"), None]
    return pa.Table.from_arrays(
        [
            pa.array(range(start, start + count), pa.int64()),
            moments.cast(pa.timestamp("us", "UTC")),
            cycled(TIMES, pa.int64()).cast(pa.timestamp("us")),
            cycled(DAYS, pa.int32()).cast(pa.date32()),
            cycled(TEXTS, pa.string()),
            cycled([b"", b"\x00\xff", b"plain", None], pa.binary()),
            cycled(amounts, pa.decimal128(20, 4)),
            cycled(FLOATS, pa.float64()),
            cycled([0.0, -0.0, math.nan, math.inf, 1e-45, 3.4028234663852886e38, None], pa.float32()),
            cycled([0, 2**31 - 1, -(2**31), None], pa.int32()),
            cycled([True, False, None], pa.bool_()),
        ],
        schema=COLUMNS,
    )


@pytest.fixture
def delivered(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Three deliveries: 600 rows, 10 of each held."""
    new = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Append(partition_by=month("at")))
    new.deliver(rows(300), bad=range(10))
    new.deliver(rows(200, start=300), bad=range(10))
    new.deliver(rows(100, start=500), bad=range(10))
    return new


def seen(delivering: Delivering) -> AuditReport:
    return audit(delivering.place, delivering.pipeline)


def found(report: AuditReport, kind: str) -> dict[int | None, str]:
    """Return what differs, by delivery; a delivery has one difference of a kind."""
    whats = {one.delivery_id: one.what for one in report.differences if one.kind == kind}
    assert len(whats) == sum(one.kind == kind for one in report.differences)
    return whats


def deliveries(delivering: Delivering) -> list[int]:
    numbers = delivering.execute("SELECT delivery_id FROM sluice.delivery ORDER BY commit_seq")
    return [number for (number,) in numbers]


def data_file(delivering: Delivering, kind: str, delivery: int) -> str:
    of_kind = "SELECT path FROM sluice.delivery_file WHERE kind = %s AND delivery_id = %s ORDER BY path"
    paths = delivering.execute(of_kind, kind, delivery)
    return str(paths[0][0])


def put(uri: str, body: bytes | None) -> None:
    """Put another content in an object's place, or take the object away."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if body is None:
        boto3.Session().client("s3").delete_object(Bucket=bucket, Key=key)
    else:
        boto3.Session().client("s3").put_object(Bucket=bucket, Key=key, Body=body)


def rewrite(uri: str, change: Callable[[pa.Table], pa.Table]) -> None:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    content = boto3.Session().client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    sink = io.BytesIO()
    pq.write_table(change(pq.read_table(io.BytesIO(content))), sink)
    put(uri, sink.getvalue())


def doubled(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table.slice(0, 1)])


def shortened(table: pa.Table) -> pa.Table:
    return table.slice(1)


def renumbered(table: pa.Table) -> pa.Table:
    place = table.schema.get_field_index("id")
    numbers = [-1, *table.column("id").to_pylist()[1:]]
    return table.set_column(place, table.field(place), pa.array(numbers, pa.int64()))


def test_what_was_delivered_is_clean(delivered: Delivering) -> None:
    report = seen(delivered)
    assert report.clean, report.lines()
    assert report.rows == {"lake": 570, "table": 570, "lake's quarantine": 30, "sluice.quarantine": 30}
    assert (report.deliveries, report.orphans, report.changed_inputs) == (3, [], [])
    assert json.loads(json.dumps(report.json()))["clean"] is True


def test_what_changed_in_the_table_is_found(delivered: Delivering) -> None:
    delivered.execute("INSERT INTO {t} SELECT * FROM {t} WHERE id = 50")
    delivered.execute("DELETE FROM {t} WHERE id = 350")
    delivered.execute("UPDATE {t} SET small = 5 WHERE id = 550")
    report = seen(delivered)
    whats = found(report, "rows")
    assert len(report.differences) == len(whats) == 3
    kept = "SELECT pipeline, command, differences FROM sluice.maintenance"
    assert delivered.execute(kept) == [("events", "audit", 3)]
    first, second, third = (whats[number] for number in deliveries(delivered))
    assert "ledger 290, lake 290, table 291" in first
    assert "ledger 190, lake 190, table 189" in second
    assert "90 rows everywhere, but values differ: table against ledger and lake" in third


def test_a_row_that_names_another_delivery_is_found(delivered: Delivering) -> None:
    first, second, _ = deliveries(delivered)
    delivered.execute("UPDATE {t} SET _delivery_id = %s WHERE id = 50", second)
    report = seen(delivered)
    assert {one.delivery_id for one in report.differences} == {first, second}
    assert any("is no live delivery" in one.what for one in report.differences)


def test_rows_that_somebody_else_put_into_the_table_have_a_way_out(delivered: Delivering) -> None:
    stray = "INSERT INTO {t} (id, _stream_id, _batch_id, _delivery_id) VALUES (9999, gen_random_uuid(), 0, 424242)"
    delivered.execute(stray)
    [way] = seen(delivered).next
    assert way.startswith('`DELETE FROM "warehouse"."events" WHERE _delivery_id = 424242` takes out')
    delivered.execute(way.split("`")[1])
    assert seen(delivered).clean


def test_a_column_that_was_renamed_is_told_with_its_new_name(delivered: Delivering) -> None:
    delivered.execute("ALTER TABLE {t} RENAME small TO little")
    with pytest.raises(
        TableRefused, match=r"no longer the columns small, .*little is not delivered"
    ) as refused:
        open_sinks(delivered.pipeline, COLUMNS, dsn=delivered.dsn, lake=delivered.place.lake)
    assert "RENAME COLUMN" in refused.value.remedy
    delivered.execute("ALTER TABLE {t} RENAME little TO small")
    open_sinks(delivered.pipeline, COLUMNS, dsn=delivered.dsn, lake=delivered.place.lake)


def test_what_changed_in_the_lake_is_found(delivered: Delivering) -> None:
    numbers = deliveries(delivered)
    for number, change in zip(numbers, (doubled, shortened, renumbered), strict=True):
        rewrite(data_file(delivered, "data", number), change)
    whats = found(seen(delivered), "rows")
    assert len(whats) == 3
    assert "ledger 290, lake 291, table 290" in whats[numbers[0]]
    assert "ledger 190, lake 189, table 190" in whats[numbers[1]]
    assert "lake against ledger and table" in whats[numbers[2]]


def test_objects_that_are_lost_or_torn_are_found(delivered: Delivering) -> None:
    first, second, _ = deliveries(delivered)
    lost, torn = data_file(delivered, "data", first), data_file(delivered, "data", second)
    put(lost, None)
    put(torn, b"not this")
    report = seen(delivered)
    whats = [one.what for one in report.differences if one.kind == "file"]
    assert any(lost in what and "no such object" in what for what in whats)
    assert any(torn in what and "8 bytes" in what for what in whats)
    assert any(torn in what and "can't be read" in what for what in whats)
    assert {*found(report, "rows")} == {first, second}


@pytest.mark.parametrize("part", ["metadata", "list"])
def test_metadata_that_is_lost_needs_a_person(delivered: Delivering, part: str) -> None:
    pointer = delivered.pointers()[0]
    snapshot = delivered.table.load(pointer).current_snapshot()
    assert snapshot is not None
    put(pointer if part == "metadata" else snapshot.manifest_list, None)

    def deliver_anew() -> None:
        delivered.restart()  # a run that is up has the metadata in memory
        delivered.deliver(rows(5, start=700))

    for command in (lambda: seen(delivered), deliver_anew):
        with pytest.raises(NeedsPerson, match="is gone"):
            command()


def test_what_changed_in_the_ledger_is_found(delivered: Delivering) -> None:
    first, second, third = deliveries(delivered)
    more = "UPDATE sluice.delivery SET delivered = delivered + 1, rows_in = rows_in + 1"
    delivered.execute(f"{more} WHERE delivery_id = %s", first)
    delivered.execute("UPDATE sluice.delivery SET checksum = checksum + 1 WHERE delivery_id = %s", second)
    delivered.execute("DELETE FROM sluice.delivery_file WHERE path = %s", data_file(delivered, "data", third))
    report = seen(delivered)
    whats = found(report, "rows")
    assert "ledger 291, lake 290, table 290" in whats[first]
    assert "ledger against lake and table" in whats[second]
    assert third not in whats
    assert ["not in the ledger" in what for what in found(report, "file").values()] == [True]


def test_what_changed_in_the_quarantine_is_found(delivered: Delivering) -> None:
    numbers = deliveries(delivered)
    for number, change in zip(
        numbers,
        ("DELETE FROM sluice.quarantine", "UPDATE sluice.quarantine SET row = row || ' '",
         "UPDATE sluice.quarantine SET reasons = '{other}'"), strict=True,
    ):  # fmt: skip
        one = "(SELECT min(quarantine_id) FROM sluice.quarantine WHERE delivery_id = %s)"
        delivered.execute(f"{change} WHERE quarantine_id = {one}", number)
    whats = found(seen(delivered), "quarantine")
    assert "lake 10, table 9" in whats[numbers[0]]
    assert ["values differ" in whats[number] for number in numbers[1:]] == [True, True]


def test_what_changed_in_the_lakes_quarantine_is_found(delivered: Delivering) -> None:
    first = deliveries(delivered)[0]
    rewrite(data_file(delivered, "quarantine", first), shortened)
    whats = [(one.delivery_id, one.what) for one in seen(delivered).differences if one.kind == "quarantine"]
    assert [(number, "lake 9" in what) for number, what in whats] == [(first, True), (first, True)]


CHANGES = {
    "at": "at + interval '1 microsecond'",
    "local": "'-infinity'",
    "on": "'infinity'",
    "text": "coalesce(text, '') || ' '",
    "bytes": "coalesce(bytes, '') || '\\x00'::bytea",
    "amount": "'NaN'",
    "x": "CASE WHEN x = 0 THEN -x ELSE 0.3 END",
    "y": "CASE WHEN y = 0 THEN -y ELSE 0.3 END",
    "small": "CASE WHEN small IS NULL THEN 0 END",
    "yes": "CASE WHEN yes THEN false ELSE true END",
    "id": "-id",
    "_batch_id": "_batch_id + 1",
    "_stream_id": "gen_random_uuid()",
}


def test_every_change_of_every_value_is_seen(delivered: Delivering) -> None:
    """Whatever the value was: zeros, infinities, nulls, far dates, empty and odd texts."""
    connection = connect(delivered.dsn)
    target, columns = sql.Identifier("warehouse", "events"), COLUMNS

    def counted() -> dict[Identity, Tally]:
        table = Recount(names=[*columns.names, BEYOND])
        with connection.cursor() as cursor:
            table_rows(cursor, target, columns, table.add)
        return table.tallies

    before = counted()
    for column, value in CHANGES.items():
        for number in range(500 + 10, 500 + 10 + 60):
            with connection.cursor() as cursor:
                cursor.execute(f'UPDATE warehouse.events SET "{column}" = {value} WHERE id = {number}')
                assert cursor.rowcount == 1
            assert counted() != before, (column, number)
            connection.rollback()
    assert counted() == before
    connection.close()


def test_a_row_larger_than_a_chunk_is_read(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("text", pa.string())])
    large = Delivering.start(services, dsn, lake, tmp_path, columns, Append())
    texts = ["a\n" * (CHUNK_BYTES // 2 + 1), '"' * 1000, "", "\r\n"]
    large.deliver(pa.table([pa.array(range(4), pa.int64()), pa.array(texts)], schema=columns))
    report = seen(large)
    assert report.clean, report.differences


def test_a_column_that_the_table_lost_is_found(delivered: Delivering) -> None:
    delivered.execute("ALTER TABLE {t} DROP COLUMN text")
    report = seen(delivered)
    assert "column text is missing" in found(report, "table")[None]
    assert_filled_from_the_inputs(delivered, report)


def test_a_column_that_was_dropped_and_put_back_empty_is_found(delivered: Delivering) -> None:
    delivered.execute("ALTER TABLE {t} ADD COLUMN own int; ALTER TABLE {t} DROP COLUMN own")
    open_sinks(delivered.pipeline, COLUMNS, dsn=delivered.dsn, lake=delivered.place.lake)
    delivered.execute("ALTER TABLE {t} DROP COLUMN text; ALTER TABLE {t} ADD COLUMN text text")
    whats = found(seen(delivered), "rows")
    assert {*whats} == {*deliveries(delivered)}
    assert all("but values differ: table against ledger and lake" in what for what in whats.values())
    with pytest.raises(
        TableRefused, match="events has no value any more in the columns text, and deliveries"
    ):
        open_sinks(delivered.pipeline, COLUMNS, dsn=delivered.dsn, lake=delivered.place.lake)
    assert "--accept-changed` fills it from the inputs" in refusal_of_a_run(delivered)


def test_a_table_that_is_gone_is_told_as_that(delivered: Delivering) -> None:
    """One that is made anew by hand would be empty, and runs would go on with it."""
    delivered.execute("ALTER TABLE {t} SET SCHEMA public")
    report = seen(delivered)
    assert found(report, "table")[None] == "table warehouse.events is gone"
    assert_filled_from_the_inputs(delivered, report)


@pytest.mark.parametrize(
    ("state", "way"),
    [
        ([], "`sluice replay events --deliveries 1..{last} --accept-changed` fills it from the inputs again"),
        (["Aggregate"], "`sluice recover events --before 1 --why WHY` takes all out of both sinks"),
    ],
    ids=["each batch by itself", "with state"],
)
def test_no_run_goes_on_over_a_table_that_was_made_anew_by_hand(
    delivered: Delivering, state: list[str], way: str
) -> None:
    sinks, [last, *_] = delivered.session.sinks, sorted(deliveries(delivered), reverse=True)
    again: dict[str, Any] = {"dsn": sinks.dsn, "lake": sinks.lake}
    open_sinks(sinks.pipeline, sinks.columns, **again)
    delivered.execute("UPDATE sluice.stream SET state = %s", state)
    delivered.execute("CREATE TABLE public.kept (LIKE {t}); ALTER TABLE {t} SET SCHEMA public")
    delivered.execute(
        "ALTER TABLE public.kept RENAME TO events_anew; ALTER TABLE public.events_anew SET SCHEMA warehouse"
    )
    delivered.execute("ALTER TABLE warehouse.events_anew RENAME TO events")
    with pytest.raises(
        TableRefused, match="events holds no row, and deliveries of pipeline events had"
    ) as refused:
        open_sinks(sinks.pipeline, sinks.columns, **again)
    assert way.format(last=last) in refused.value.remedy
    open_sinks(sinks.pipeline, sinks.columns, **again, fills=True)


def assert_filled_from_the_inputs(delivered: Delivering, report: AuditReport) -> None:
    """What a run is refused with names the same way; with state it is no replay."""
    [way] = [one for one in report.next if "put table warehouse.events back as it was, with its rows" in one]
    replay = re.compile(
        r"`sluice replay events --deliveries 1\.\.\d+ --accept-changed` fills it from the inputs"
    )
    assert replay.search(way)
    assert way.startswith(refusal_of_a_run(delivered))
    delivered.execute("UPDATE sluice.stream SET state = '{count}'")
    assert "`sluice recover events --before" in refusal_of_a_run(delivered)


def refusal_of_a_run(delivered: Delivering) -> str:
    """Return the next step that a run is refused with."""
    with pytest.raises(TableRefused, match="had filled it") as refused:
        open_sinks(delivered.pipeline, COLUMNS, dsn=delivered.dsn, lake=delivered.place.lake)
    return refused.value.remedy


def test_what_a_failed_attempt_left_is_told_and_no_difference(delivered: Delivering) -> None:
    class FailureError(Exception):
        pass

    def fail(step: Step) -> None:
        if step is Step.POINTER_DRAFTED:
            raise FailureError

    delivered.on_step = fail
    with pytest.raises(FailureError):
        delivered.deliver(rows(50, start=600), bad=[0])
    report = seen(delivered)
    assert report.clean
    assert {orphan.state for orphan in report.orphans} == {"failed"}
    kinds = {re.sub(r".*/events(_quarantine)?/(\w+)/.*", r"\1 \2", orphan.uri) for orphan in report.orphans}
    assert kinds == {" data", "_quarantine data", " metadata", "_quarantine metadata", " deliveries"}
    failed, size = delivered.batch_id + 1, sum(orphan.bytes for orphan in report.orphans)
    [summed, by_attempt] = [
        line for line in report.lines() if " of " in line and line.endswith(("bytes", "):"))
    ]
    count = f"{len(report.orphans)} objects of {size:,} bytes"
    assert summed == f"  {count} that nothing refers to (see `sluice sweep`; --json lists them):"
    assert by_attempt == f"    delivery {failed}, failed: {count}"
    assert [orphan["uri"] for orphan in report.json()["orphans"]] == [orphan.uri for orphan in report.orphans]


def test_a_landed_file_that_changed_is_told(delivered: Delivering) -> None:
    (delivered.landing / "1.jsonl").write_text("other content\n")
    (delivered.landing / "2.jsonl").unlink()
    report = seen(delivered)
    assert report.clean
    assert [change.split()[0] for change in report.changed_inputs] == ["1.jsonl", "2.jsonl"]
    lines = report.lines()
    assert (
        lines[0]
        == "events: clean, but 2 delivered files have changed since: both sinks hold what was delivered"
    )
    assert "    delivery 2: 1.jsonl has 14 bytes and had 8" in lines
    assert "    delivery 3: 2.jsonl is gone" in lines
    assert report.next[0].startswith(
        "`sluice replay events --deliveries 2 --accept-changed` delivers these files"
    )
    assert len(report.next) == 1  # the rows of what is gone stay
    assert report.json()["changed_deliveries"] == {
        2: ["1.jsonl has 14 bytes and had 8"],
        3: ["2.jsonl is gone"],
    }
    (delivered.landing / "1.jsonl").write_text("batch 1\n")
    assert seen(delivered).lines()[0].startswith("events: clean, but 2 delivered files have changed")


def test_a_difference_and_a_changed_file_lead_to_a_replay_each(delivered: Delivering) -> None:
    delivered.execute("DELETE FROM {t} WHERE id = 350")
    (delivered.landing / "0.jsonl").write_text("other content\n")
    report = seen(delivered)
    assert report.lines()[0] == "events: NOT clean"
    assert "  1 difference:" in report.lines()
    assert "  1 delivered file that has changed since:" in report.lines()
    assert [one.split("` ")[0] for one in report.next] == [
        "`sluice replay events --deliveries 2 --accept-changed",
        "`sluice replay events --deliveries 1 --accept-changed",
    ]
    (delivered.landing / "1.jsonl").unlink()
    again, replay = seen(delivered).next
    assert again.startswith("land the files that are gone of delivery 2 again, as they were: ")
    assert replay.startswith("`sluice replay events --deliveries 1 --accept-changed` delivers these files as")


def test_landed_files_that_no_delivery_has_are_told_and_no_difference(delivered: Delivering) -> None:
    assert seen(delivered).undelivered == []
    folder = delivered.landing / "events"
    folder.mkdir()
    for name in ("new.jsonl", "caf\udce9.jsonl", "_draft.jsonl", "other.txt"):
        (folder / name).write_text("{}\n")
    (folder / "to nothing.jsonl").symlink_to("gone")
    report = seen(delivered)
    assert report.clean
    assert report.undelivered == [f"events/{name}.jsonl" for name in ("caf\\xe9", "new", "to nothing")]
    assert any("3 landed files that no delivery has" in line for line in report.lines())
    assert json.dumps(report.json(), ensure_ascii=False).encode()


def test_a_pipeline_that_never_delivered_is_clean(
    services: Services, dsn: str, lake: Lake, tmp_path: Path
) -> None:
    report = seen(Delivering.start(services, dsn, lake, tmp_path, COLUMNS))
    assert report.clean
    assert report.deliveries == 0


KEYED = pa.schema([("key", pa.int64()), ("version", pa.float64()), ("value", pa.string())])


def keyed(*values: tuple[int, float | None, str]) -> pa.Table:
    rows = [dict(zip(KEYED.names, value, strict=True)) for value in values]
    return pa.Table.from_pylist(rows, KEYED)


@pytest.fixture
def upserted(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Newer and older versions, ties, nulls, NaN and negatives, within a delivery and between two."""
    new = Delivering.start(services, dsn, lake, tmp_path, KEYED, Upsert(keys=("key",), newest="version"))
    nan, inf = math.nan, math.inf
    new.deliver(keyed((1, 1, "a"), (1, 3, "b"), (2, 1, "c"), (3, None, "d"), (4, -0.0, "e"), (5, nan, "f")))
    new.deliver(keyed((1, 2, "older"), (2, 1, "tie"), (3, None, "later"), (4, 0.0, "equal"), (5, inf, "no")))
    new.deliver(keyed((6, -5, "g"), (6, -4, "h"), (6, -4, "h2"), (3, -1, "first"), (2, None, "null")))
    return new


def test_an_upserted_table_is_the_latest_of_the_change_log(upserted: Delivering) -> None:
    latest = upserted.execute("SELECT key, value FROM {t} WHERE key < 6 ORDER BY key")
    assert latest == [(1, "b"), (2, "tie"), (3, "first"), (4, "equal"), (5, "f")]
    report = seen(upserted)
    assert report.clean, report.lines()
    assert report.rows["lake"] == 16
    assert report.rows["table"] == 6


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
@pytest.mark.parametrize("delivered_by", ["this version", "an older one"])
def test_zeros_of_two_signs_are_one_key_in_both_sinks(
    services: Services,
    dsn: str,
    lake: Lake,
    tmp_path: Path,
    kind: pa.DataType,
    delivered_by: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if delivered_by == "an older one":  # which left them as they came
        monkeypatch.setattr(stage, "without_negative_zeros", lambda rows, keys: rows)
    columns = KEYED.set(0, pa.field("key", kind))
    new = Delivering.start(services, dsn, lake, tmp_path, columns, Upsert(keys=("key",), newest="version"))
    keys = (0.0, -0.0), (-0.0, 1.5), (0.0, -1.5)
    for version, two in enumerate(keys):
        rows = [
            pa.array(two, kind),
            pa.array([version, version + 0.5]),
            pa.array([f"{version}a", f"{version}b"]),
        ]
        new.deliver(pa.table(rows, schema=columns))
    assert new.execute("SELECT value FROM {t} ORDER BY key") == [("2b",), ("2a",), ("1b",)]
    report = seen(new)
    assert report.clean, report.lines()
    assert (report.rows["lake"], report.rows["table"]) == (6, 3)
    on_lake = new.table.at(new.pointers()[0]).scan().to_arrow().column("key").to_pylist()
    negative = any(key == 0 and math.copysign(1, key) < 0 for key in on_lake)
    assert negative == (delivered_by == "an older one")


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
def test_equally_new_texts_or_bytes_of_two_deliveries_are_no_difference(
    services: Services, dsn: str, lake: Lake, tmp_path: Path, kind: pa.DataType
) -> None:
    columns = KEYED.set(1, pa.field("version", kind))
    new = Delivering.start(services, dsn, lake, tmp_path, columns, Upsert(keys=("key",), newest="version"))
    for version in (b"b", b"a"):
        new.deliver(pa.table([[1], pa.array([version], kind), [str(version)]], schema=columns))
    assert new.execute("SELECT value FROM {t}") == [("b'b'",)]
    report = seen(new)
    assert report.clean, report.lines()


def test_what_changed_in_an_upserted_table_is_found(upserted: Delivering) -> None:
    upserted.execute("UPDATE {t} SET value = 'older', version = 2 WHERE key = 1")  # the log has it
    upserted.execute("DELETE FROM {t} WHERE key = 2")
    added = "7, version, value, _stream_id, _batch_id, _delivery_id"
    upserted.execute(f"INSERT INTO {{t}} SELECT {added} FROM {{t}} WHERE key = 3")
    whats = found(seen(upserted), "latest")
    first, second, third = deliveries(upserted)
    assert "not the latest" in whats[first]
    assert "no row of 1 key" in whats[second]
    assert "1 row whose key is not in the lake" in whats[third]


def test_a_key_that_is_twice_in_an_upserted_table_is_found(upserted: Delivering) -> None:
    upserted.execute("DROP INDEX warehouse.events_sluice_key")
    upserted.execute("INSERT INTO {t} SELECT * FROM {t} WHERE key = 1")
    assert "1 row too many" in found(seen(upserted), "latest")[deliveries(upserted)[0]]


def test_a_replaced_table_is_its_last_delivery(
    services: Services, dsn: str, lake: Lake, tmp_path: Path
) -> None:
    replaced = Delivering.start(services, dsn, lake, tmp_path, KEYED, Replace())
    replaced.deliver(keyed((1, 1, "a"), (2, 2, "b")), bad=[0])
    replaced.deliver(keyed((3, 1, "c"), (4, 2, "d"), (5, 3, "e")))
    report = seen(replaced)
    assert report.clean, report.lines()
    assert report.rows == {"lake": 3, "table": 3, "lake's quarantine": 1, "sluice.quarantine": 1}
    replaced.execute("DELETE FROM {t} WHERE key = 3")
    assert [*found(seen(replaced), "rows")] == [deliveries(replaced)[1]]


def test_an_audit_beside_a_commit_sees_one_moment(delivered: Delivering) -> None:
    """What is not committed when the audit begins is in none of its figures."""
    reports: list[AuditReport] = []

    def look(step: Step) -> None:
        if step is Step.POINTER_SWAPPED:
            reports.append(seen(delivered))

    delivered.on_step = look
    delivered.deliver(rows(40, start=900))
    assert reports[0].clean, reports[0].lines()
    assert reports[0].rows["table"] == 570
    assert seen(delivered).rows["table"] == 610


def test_what_was_committed_while_an_audit_looked_is_no_orphan(
    delivered: Delivering, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, listed = seen(delivered), audit_module._listed

    def later(*of: Any) -> dict[str, int]:
        delivered.deliver(rows(10, start=900))
        return listed(*of)

    monkeypatch.setattr(audit_module, "_listed", later)
    report = seen(delivered)
    assert report.clean, report.lines()
    assert (report.rows, report.orphans) == (before.rows, before.orphans)


def test_a_table_that_is_being_written_anew_is_told_as_busy(
    delivered: Delivering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TIMEOUTS, "lock_timeout", "100ms")
    with psycopg2.connect(delivered.dsn) as other, other.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {delivered.pipeline.table} IN ACCESS EXCLUSIVE MODE")
        with (
            pytest.raises(Busy, match="lock was held for longer than lock_timeout"),
            raising_service_errors(),
        ):
            seen(delivered)
    assert seen(delivered).clean
