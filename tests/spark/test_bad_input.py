"""Whatever lands, every record is delivered or held with its reason; a file that can't be read stops it, or is held."""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.common.errors import InputsUnreadable, TableRefused
from etl.operations.control.status import states
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from tests.support import oracle
from tests.support.data.orders import CITIES, MALFORMED, rule
from tests.support.home import Home, uri
from tests.support.oracle import Row, Rows

NEGATIVE = "amount is not negative"
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("amount", pa.float64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("city", pa.string()),
    ]
)
DECLARATION = """
from etl.pipeline import Append, Files, Lookup, Pipeline

def some(df, *, shops):
    return df.where("id <> 13").join(shops, "shop").select("id", "n", "amount", "name", "at", "day", "city")

PIPELINE = Pipeline(
    name="mixed",
    sources=(
        Files("in/**/*.jsonl"), Files("in/**/*.jsonl.gz"), Files("in/**/*.csv"), Files("in/**/*.parquet"),
    ),
    schema="id bigint, n int, amount double, name string, at timestamp, day date, shop string",
    lookups={"shops": Lookup("reference/shops.csv", schema="shop string, city string", key=("shop",))},
    transform=some,
    suite="mixed",
    sink=Append(),
    max_quarantine_share=1.0,
    unreadable="hold",
)
"""
READINGS = """
from etl.pipeline import Append, Files, Pipeline

def readings(df):
    from pyspark.sql import functions as F
    return df.select("sensor", "value", F.substring_index("file", "/", -1).alias("file"))

PIPELINE = Pipeline(
    name="readings", sources=(Files("readings/*.csv", path="file"),), schema="sensor int, value double", transform=readings,
    sink=Append(), {more}
)
"""
EXPORTED = """
from etl.pipeline import Append, Files, Pipeline

PIPELINE = Pipeline(
    name="exported",
    sources=(Files("exported/*.jsonl"), Files("exported/*.csv")),
    schema="_id string, __v int, _offset bigint",
    transform={transform},
    sink=Append(),
    max_quarantine_share=1.0,
)
"""
HEADER = "id,n,amount,name,at,day,shop"


@dataclass(kw_only=True)
class Fates:
    """What must become of all that landed."""

    delivered: Rows = field(default_factory=Counter)
    held: Rows = field(default_factory=Counter)  # (reasons, id, raw, URI)
    unreadable: list[str] = field(default_factory=list)  # URIs

    def deliver(self, **record: Any) -> dict[str, Any]:
        self.delivered[row(record)] += 1
        return record

    def hold(self, file: str, *reasons: str, **record: Any) -> dict[str, Any]:
        self.held[reasons, record["id"], None, file] += 1
        return record

    def malform(self, file: str, *raws: str) -> list[str]:
        self.held.update(((MALFORMED,), None, raw, file) for raw in raws)
        return list(raws)

    @property
    def rows(self) -> int:
        return self.delivered.total() + self.held.total() + len(self.unreadable)


def row(record: dict[str, Any]) -> Row:
    """Return the row as the sinks have it."""
    amount, at, day = (record.get(name) for name in ("amount", "at", "day"))
    return (
        record.get("id"),
        record.get("n"),
        None if amount is None else oracle.plain(float(amount)),
        record.get("name"),
        None if at is None else int(np.datetime64(at.removesuffix("Z"), "us").astype(int)),
        None if day is None else int(np.datetime64(day, "D").astype(int)),
        CITIES[record["shop"]],
    )


def lines(*records: dict[str, Any] | str) -> str:
    return "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in records)


def csv(*records: dict[str, Any] | str) -> str:
    def text(record: dict[str, Any]) -> str:
        return ",".join(
            "" if (value := record.get(name)) is None else str(value) for name in HEADER.split(",")
        )

    return "".join(f"{one if isinstance(one, str) else text(one)}\n" for one in (HEADER, *records))


def parquet(*records: dict[str, Any], **kinds: pa.DataType) -> bytes:
    known = {
        "id": pa.int64(),
        "n": pa.int32(),
        "amount": pa.float64(),
        "name": pa.string(),
        "shop": pa.string(),
    }
    known |= kinds
    table = pa.Table.from_pylist(list(records), pa.schema([(n, known[n]) for n in records[0]]))
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def cut_gzip(text: str) -> bytes:
    """Return a gzip file that ends too early, after all of `text`."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(text.encode()) + packer.flush(zlib.Z_SYNC_FLUSH)


FULL = {"n": 1, "amount": 2.5, "name": "x", "at": "2020-01-01T10:00:00Z", "day": "2020-02-29", "shop": "A"}


def readable(home: Home, fates: Fates) -> None:
    """Records of every kind in files that can be read to their end."""
    a, b, c = (uri(home.landing / path) for path in ("in/a.jsonl", "in/b.csv", "in/nul.jsonl"))
    home.write(
        "in/a.jsonl",
        lines(
            fates.deliver(id=1, **FULL),
            *fates.malform(a, '{"id":2', '{"id":"3"}', '{"id":4.5}', '{"n":3000000000}', "[]", "not json"),
            *fates.malform(a, '{"id":99999999999999999999}', '{"day":"2020-02-30"}', '{"at":"yesterday"}'),
            *fates.malform(a, '{"id":5,"shop":"A"}{"id":6,"shop":"A"}', "null", '{"amount":"much"}'),
            fates.deliver(id=7, shop="B"),
            fates.deliver(**{**FULL, "id": 8, "amount": "NaN"}),
            fates.deliver(**{**FULL, "id": 9, "amount": "Infinity"}),
            fates.hold(a, NEGATIVE, **{**FULL, "id": 10, "amount": "-Infinity"}),
            {**FULL, "id": 13},
            {**FULL, "id": 14, "shop": "no such"},
            fates.hold(a, "postgres_nul(name)", **{**FULL, "id": 15, "name": "a\x00b"}),
            *fates.malform(a, '{"id":16,"at":"-4800-01-01T00:00:00Z"}', '{"id":17,"day":"-4800-01-01"}'),
            fates.hold(a, NEGATIVE, "postgres_nul(name)", **{**FULL, "id": 18, "amount": -1, "name": "\x00"}),
            fates.deliver(**{**FULL, "id": 19, "at": "0001-01-01T00:00:00Z", "day": "9999-12-31"}),
        ),
    )
    home.write("in/nul.jsonl", lines(*fates.malform(c, '{"id":20,"name":"a\x00b"}')))
    home.write(
        "in/b.csv",
        csv(
            fates.deliver(id=30, **FULL),
            *fates.malform(b, "31,1,2.5,too,few", "32,1,2.5,x,2020-01-01T10:00:00Z,2020-01-01,A,too many"),
            *fates.malform(b, "x,1,2.5,x,,,A", "33,1.5,2.5,x,,,A", "34,3000000000,2.5,x,,,A"),
            *fates.malform(
                b, "35,1,much,x,,,A", "36,1,2.5,x,2020-13-01T00:00:00Z,,A", "37,1,2,x,,2021-02-29,A"
            ),
            fates.deliver(id=38, shop="C"),
            fates.deliver(**{**FULL, "id": 39, "amount": "NaN"}),
            *fates.malform(
                b, "40,1,2.5,x,2020-01-01T10:00:00Z,-4800-01-01,A", "41,1,2.5,x,-4800-01-01T00:00:00Z,,A"
            ),
        ),
    )
    home.write("in/empty.jsonl", "")
    home.write("in/empty.csv", "")
    home.write("in/blank.jsonl", "\n\n  \n\t\n")
    home.write("in/only header.csv", HEADER + "\n")
    home.write("in/whole.jsonl.gz", gzip.compress(lines(fates.deliver(id=50, **FULL)).encode()))


def unreadable(home: Home, fates: Fates) -> None:
    """Files that can't be read to their end, among others that can."""
    plain = {"n": 1, "amount": 2.5, "name": "x", "shop": "A"}
    some = [fates.deliver(id=100 + number, **FULL) for number in range(40)]
    other = [{"id": "text", "shop": "A"}]
    broken = {
        "in/cut.jsonl.gz": cut_gzip(lines(*some)),
        "in/no.jsonl.gz": b"this is no gzip",
        "in/renamed.csv": csv({"id": 200, **FULL}).replace("id,n,", "id,number,"),
        "in/other.csv": "a,b\n1,2\n",
        "in/types.parquet": parquet(*other, id=pa.string()),
        "in/broken.parquet": b"PAR1 and no more",
        "in/wider.parquet": parquet({"id": 1, "n": 2**40}, n=pa.int64()),
        "in/unsigned.parquet": parquet({"id": 1, "n": 2**31}, n=pa.uint32()),
        "in/days.parquet": parquet({"id": 1, "n": 19_000}, n=pa.date32()),
        "in/digits.parquet": parquet({"id": 1, "n": Decimal("12.34")}, n=pa.decimal128(9, 2)),
    }
    for path, content in broken.items():
        fates.unreadable.append(uri(home.write(path, content)))
    good = [fates.deliver(id=300, **plain), fates.deliver(id=301, **{**plain, "amount": math.inf})]
    home.write("in/good.parquet", parquet(*good))
    home.write("in/fewer.parquet", parquet(fates.deliver(id=302, shop="B")))
    more = uri(home.landing / "in/more.jsonl")
    home.write("in/more.jsonl", lines(fates.deliver(id=303, **FULL), *fates.malform(more, "{")))


def test_every_record_is_delivered_or_held_with_its_reason(home: Home) -> None:
    home.declare("mixed", text=DECLARATION)
    home.judge(
        rule("column_values_to_be_between", NEGATIVE, "warning", column="amount", min_value=0), name="mixed"
    )
    home.columns = COLUMNS
    fates = Fates()

    readable(home, fates)
    done = home.run("mixed")
    assert_fates(home, fates)
    assert (done.batches, done.rows_in) == (1, fates.rows)

    unreadable(home, fates)
    assert home.run("mixed").batches == 1
    assert_fates(home, fates)

    home.write("in/filtered.jsonl", lines({**FULL, "id": 13}, {**FULL, "id": 400, "shop": "no such"}))
    done = home.run("mixed")
    assert (done.batches, done.rows_in, done.quarantined) == (1, 0, 0)
    assert_fates(home, fates)

    landed = {str(f.relative_to(home.landing)) for f in (home.landing / "in").iterdir()}
    assert {path for (path,) in home.ask("SELECT path FROM sluice.delivery_input")} == landed
    before = home.history()
    assert home.run("mixed").batches == 0
    assert home.history() == before


def a_good_and_an_other_file(home: Home, more: str = "", declared: str = READINGS) -> None:
    """Land a hundred readings in each of two files of one batch, one of which has a column of another name."""
    home.declare("readings", text=declared.format(more=more))
    home.write("readings/good.csv", "sensor,value\n" + "".join(f"{n},0.5\n" for n in range(100)))
    home.write("readings/other.csv", "sensor,reading\n" + "".join(f"{n},0.5\n" for n in range(100)))


def delivered(home: Home) -> dict[str, int]:
    """Count the rows in both sinks by their file; none where no table is there yet."""
    home.columns = pa.schema([("sensor", pa.int32()), ("value", pa.float64()), ("file", pa.string())])
    eyes = home.reader("readings")
    rows = eyes.in_postgres(system=())
    assert rows == eyes.on_lake(system=())
    found: Counter[str] = Counter()
    for (*_, file), count in rows.items():
        found[file] += count
    return dict(found)


def test_a_file_that_can_not_be_read_stops_the_batch_and_is_named_until_it_is_whole(home: Home) -> None:
    a_good_and_an_other_file(home)
    said = (
        r"readings/other\.csv can't be read: its CSV header is sensor, reading; the schema is sensor, value: "
    )
    with pytest.raises(InputsUnreadable, match=said) as stopped:
        home.run("readings")
    assert stopped.value.exit_code == 4
    for way in ("`sluice recover readings`", "sluice decide readings --batch 0", 'unreadable="hold"'):
        assert way in stopped.value.remedy
    [(stops, report)] = home.ask("SELECT stops, report::json FROM sluice.stopped_batch")
    assert [stop.partition(" can't")[0] for stop in stops] == [home.uri("readings/other.csv")]
    assert (report["stops"], report["success"]) == (stops, False)
    [state] = states(home.place, "readings")
    assert ("other.csv can't be read: " in state.state, state.next) == (True, "sluice recover readings")
    with pytest.raises(InputsUnreadable):
        home.run("readings")
    assert delivered(home) == {}

    home.write("readings/other.csv", "sensor,value\n" + "".join(f"{n},0.5\n" for n in range(100)))
    home.recover("readings")
    home.run("readings")
    assert delivered(home) == {"good.csv": 100, "other.csv": 100}
    assert home.ask("SELECT count(*) FROM sluice.stopped_batch") == [(0,)]
    home.assert_one_history("readings")


def test_what_can_be_read_is_delivered_once_a_person_says_so(home: Home) -> None:
    a_good_and_an_other_file(home, more="max_quarantine_share=0.0")
    with pytest.raises(
        InputsUnreadable, match="max_quarantine_share"
    ):  # one decision is on all that stops it
        home.run("readings")
    decided = home.sluice("decide", "readings", "--batch", "0", "--quarantine-all", "--why", "a test device")
    assert decided.returncode == 0, decided.stderr
    assert "one row for each file" in decided.stdout
    assert home.run("readings").rows_in == 101
    assert_other_is_held(home)
    home.write("readings/third.csv", "a,b\n1,2\n")
    with pytest.raises(InputsUnreadable, match=r"third\.csv"):
        home.run("readings")


def test_what_can_be_read_is_delivered_where_the_declaration_says_so(home: Home) -> None:
    a_good_and_an_other_file(home, more='unreadable="hold"')
    assert home.run("readings").rows_in == 101
    assert_other_is_held(home)


def test_a_file_in_utf_16_stops_the_batch_and_its_reason_is_recorded(home: Home) -> None:
    a_good_and_an_other_file(home)
    home.write("readings/other.csv", "sensor,value\n1,0.5\n".encode("utf-16-le"))
    with pytest.raises(InputsUnreadable, match=r"s\\x00e\\x00n"):
        home.run("readings")
    [(stops,)] = home.ask("SELECT stops FROM sluice.stopped_batch")
    assert [r"s\x00e\x00n" in stop for stop in stops] == [True]


def test_a_batch_of_misfits_alone_stops_or_is_held_whatever_the_transform_asks_of_its_files(
    home: Home,
) -> None:
    declared = (
        READINGS.replace("*.csv", "*.parquet")
        .replace(', path="file"', "")
        .replace('"file", "/"', '"_metadata.file_path", "/"')
    )
    home.declare("readings", text=declared.format(more=""))
    home.write(
        "readings/other.parquet", parquet({"sensor": 1, "value": 0.5}, sensor=pa.int64(), value=pa.float64())
    )
    with pytest.raises(InputsUnreadable, match="sensor is int64, declared int"):
        home.run("readings")
    home.declare("readings", text=declared.format(more='unreadable="hold", max_quarantine_share=1.0'))
    assert home.run("readings").rows_in == 1
    why = "sensor is int64, declared int"
    assert home.ask("SELECT source_path, raw, detail FROM sluice.quarantine") == [
        (home.uri("readings/other.parquet"), f"unreadable file: {why}", why)
    ]


SEEN = pa.schema(
    [
        *(("sensor", pa.int32()), ("value", pa.float64()), ("note", pa.string())),
        *(("at", pa.timestamp("us", tz="UTC")), ("file", pa.string())),
    ]
)


def seen(home: Home, transform: str) -> None:
    """Land what pandas writes: timestamps of nanoseconds, and a column that has no value and no type, or one of both."""
    declared = READINGS.replace("*.csv", "*.parquet").replace(
        "value double", "value double, note string, at timestamp"
    )
    declared = declared.replace(', path="file"', "")
    declared = declared.replace('return df.select("sensor", "value", ', f"return df.{transform}")
    home.declare("readings", text=declared.format(more=""))
    moment = pa.array([1_704_110_400_123_456_789], pa.int64())
    for name, unit, note in (
        ("both", "ns", pa.nulls(1)),
        ("note", "us", pa.nulls(1)),
        ("moment", "ns", pa.array(["x"])),
        ("plain", "us", pa.array(["x"])),
    ):
        at = (moment if unit == "ns" else pa.array([1_704_110_400_123_456])).cast(pa.timestamp(unit))
        out, sensor = io.BytesIO(), pa.array([1], pa.int32())
        pq.write_table(pa.table({"sensor": sensor, "value": pa.nulls(1), "note": note, "at": at}), out)
        home.write(f"readings/{name}.parquet", out.getvalue())


@pytest.mark.parametrize(
    "file", ['F.substring_index("_metadata.file_path", "/", -1)', 'F.concat("note", F.lit(".parquet"))']
)
def test_parquet_as_pandas_writes_it_is_delivered_with_other_files_of_one_batch(
    home: Home, file: str
) -> None:
    """Whether or not the transform asks Spark for a record's file, which it has not of files that are read in two ways."""
    seen(home, f'select("*", {file}.alias("file"))  # ')
    assert home.run("readings").batches == 1
    home.columns = SEEN
    home.assert_one_history("readings")
    named = "_metadata" in file
    said = plan(home.place, home.pipeline("readings"), Selection(deliveries=((1, 1),)))
    replay(home.place, home.pipeline("readings"), said, who="tests", spark=home.spark)
    rows = home.ask("SELECT value, note, at::text, file FROM warehouse.readings ORDER BY note, file")
    moment = "2024-01-01 12:00:00.123456+00"
    assert rows == [
        (None, "x", moment, "moment.parquet" if named else "x.parquet"),
        (None, "x", moment, "plain.parquet" if named else "x.parquet"),
        (None, None, moment, "both.parquet" if named else None),
        (None, None, moment, "note.parquet" if named else None),
    ]
    home.assert_clean("readings")


def test_nanoseconds_stop_a_transform_that_keeps_state_with_the_way_out(home: Home) -> None:
    """Its plan is fixed before Spark sees a file, and can't be made anew for a batch."""
    seen(home, "dropDuplicates()  # ")
    with pytest.raises(InputsUnreadable, match="and some of these can't be read"):
        home.run("readings")
    [(stops,)] = home.ask("SELECT stops FROM sluice.stopped_batch")
    said = {stop.partition(" ")[0].rpartition("/")[2]: stop for stop in stops}
    assert said["moment.parquet"].endswith(
        "at is timestamp[ns], in nanoseconds: write it with coerce_timestamps='us'"
    )
    assert said["note.parquet"].endswith("note has no value in this file, and so no type, instead of string")
    assert "plain.parquet" not in said


def test_fields_that_begin_with_an_underscore_are_read_and_renamed_by_the_transform(home: Home) -> None:
    """Read names such as `_id`, which document stores and connectors export, and deliver them under others."""
    home.write("exported/a.jsonl", lines({"_id": "a", "__v": 1, "_offset": 7}, {"_id": "b", "__v": "x"}))
    home.write("exported/b.csv", "_id,__v,_offset\nc,2,8\nd,none,9\n")
    home.declare("exported", text=EXPORTED.format(transform="lambda df: df"))
    with pytest.raises(TableRefused, match="_id: names that start with _ are kept for Sluice's own columns"):
        home.run("exported")
    renamed = """lambda df: df.selectExpr("_id AS id", "__v AS version", "_offset AS place")"""
    home.declare("exported", text=EXPORTED.format(transform=renamed))
    home.run("exported")
    assert sorted(home.ask("SELECT id, version, place FROM warehouse.exported")) == [("a", 1, 7), ("c", 2, 8)]
    assert sorted(home.ask("SELECT raw, reasons FROM sluice.quarantine")) == [
        ("d,none,9", [MALFORMED]),
        ('{"_id": "b", "__v": "x"}', [MALFORMED]),
    ]
    home.assert_clean("exported")


def assert_other_is_held(home: Home) -> None:
    assert delivered(home) == {"good.csv": 100}
    [(file, raw, reasons, detail)] = home.ask(
        "SELECT source_path, raw, reasons, detail FROM sluice.quarantine"
    )
    assert (file, reasons, raw) == (home.uri("readings/other.csv"), [MALFORMED], f"unreadable file: {detail}")
    assert "it lacks value, has reading instead" in detail
    home.assert_one_history("readings")


def assert_fates(home: Home, fates: Fates) -> None:
    eyes = home.reader("mixed")
    assert oracle.difference(eyes.in_postgres(system=()), fates.delivered) == ""
    assert oracle.difference(eyes.on_lake(system=()), fates.delivered) == ""
    postgres: Rows = Counter()
    for (reasons, file, raw, values, _), count in eyes.held_in_postgres().items():
        postgres[reasons, values and values[0], raw, file] += count
    lake: Rows = Counter()
    for (number, *_, reasons, raw, file, _), count in eyes.held_on_lake().items():
        lake[reasons, number, raw, file] += count
    for found, written in ((postgres, "\\u0000"), (lake, "\x00")):
        named = Counter(
            {key: count for key, count in found.items() if not (key[2] or "").startswith("unreadable file: ")}
        )
        wanted: Rows = Counter()
        for (reasons, number, raw, file), count in fates.held.items():
            wanted[reasons, number, raw and raw.replace("\x00", written), file] += count
        assert oracle.difference(named, wanted) == ""
        assert sorted(file for *_, file in (found - named).elements()) == sorted(fates.unreadable)
    assert home.ask("SELECT sum(rows_in), sum(delivered) FROM sluice.delivery") == [
        (fates.rows, fates.delivered.total())
    ]
    home.assert_one_history("mixed")
