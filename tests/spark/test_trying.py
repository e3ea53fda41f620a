"""`sluice try` says of files what a run of them then does, and writes nowhere."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import etl
from etl.cli.suites import show
from etl.common.errors import SetupError, TableRefused
from etl.ledger.quarantine import RowSelection, held_rows
from etl.operations.contracts import draft as contracts
from etl.operations.contracts.document import dumped, parsed
from etl.operations.suites.new_pipeline import draft
from etl.operations.suites.try_out import Tried, try_out
from etl.pipeline import Upsert
from etl.runs.replay.release import release
from tests.support.data.orders import NEGATIVE, NO_CITY, RULES, orders, rule
from tests.support.home import Home

LINES = """
from etl.pipeline import Append, Files, Pipeline

def same(df):
    return df

PIPELINE = Pipeline(
    name="lines", sources=(Files("lines/*.log"),), schema="line string", transform=same, sink=Append(),
    max_quarantine_share=1.0,
)
"""


def tried(home: Home, *files: str, most: int = 20) -> Tried:
    return try_out(home.place, home.pipeline(), files, most=most, spark=home.spark)


def test_what_is_said_of_files_is_what_a_run_then_does(home: Home) -> None:
    home.judge(RULES[0], RULES[1], rule("column_values_to_not_be_null", NO_CITY, "warning", column="city"))
    home.land("orders/a.jsonl", orders(0, 12, negative=[3]), ["{broken"])
    home.land("orders/b.csv", orders(20, 5))
    files = [home.landing / name for name in ("orders/a.jsonl", "orders/b.csv")]
    said = tried(home, *map(str, files))
    public = etl.try_out("orders", *files, rows=20, spark=home.spark, settings=home.place.settings)
    assert {**public.json(), "plan": ""} == {**said.json(), "plan": ""}
    assert home.ask("SELECT to_regclass('warehouse.orders')") == [(None,)]
    assert home.ask("SELECT count(*) FROM sluice.attempt") == [(0,)]
    assert not home.objects()

    home.run()
    [(rows_in, delivered, quarantined, malformed)] = home.ask(
        "SELECT rows_in, delivered, quarantined, malformed FROM sluice.delivery"
    )
    assert said.delivered == len(said.rows) == delivered
    assert (
        (said.held + said.malformed, said.malformed) == (quarantined, malformed) == (rows_in - delivered, 1)
    )
    ids = list(said.columns).index("id")
    assert sorted(row[ids] for row in said.rows) == [
        n for (n,) in home.ask("SELECT id FROM warehouse.orders ORDER BY id")
    ]
    assert [raw for raw, _, _ in said.malformed_records] == ["{broken"]
    held = [sorted(reasons) for reasons, _ in said.held_rows]
    assert held.count([NEGATIVE]) + held.count(sorted([NEGATIVE, NO_CITY])) == 1
    kinds = home.ask(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'warehouse.orders'::regclass AND attnum > 0 AND NOT starts_with(attname, '_')"
    )
    assert said.columns == dict(kinds)
    stored = home.ask("SELECT report::json -> 'success' FROM sluice.quality")
    assert [said.verdict.success] == [found for (found,) in stored]


def test_a_text_that_is_not_utf_8_is_shown_as_it_is_held(home: Home) -> None:
    path = home.write("lines/a.log", b"whole\nbr\xe4ken\n")
    home.declare("lines", text=LINES)
    home.make_folder("lines")
    said = try_out(home.place, home.pipeline("lines"), [str(path)], spark=home.spark)
    assert said.rows == [("whole",)]
    assert said.held_rows == [(["postgres_encoding(line)"], ("br\\xe4ken",))]
    home.columns = pa.schema([("line", pa.string())])
    assert home.run("lines").reasons == {"postgres_encoding(line)": 1}
    held, lines = held_rows(home.dsn, "lines", RowSelection()), home.pipeline("lines")
    with pytest.raises(SetupError, match="kept with other text than was read: bytes of line are no UTF-8"):
        release(home.place, lines, held, {}, who="tests", why="so", spark=home.spark)
    right = {held[0].quarantine_id: {"line": "bräken"}}
    release(home.place, lines, held, right, who="tests", why="so", spark=home.spark)
    assert set(home.ask("SELECT line FROM warehouse.lines")) == {("whole",), ("bräken",)}


def test_a_parquet_file_of_other_types_is_told(home: Home) -> None:
    home.declare(
        "numbers",
        text=LINES.replace("lines", "numbers").replace(".log", ".parquet").replace("line string", "n int"),
    )
    home.make_folder("numbers")
    out = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array([2**40], pa.int64())}), out)
    path = home.write("numbers/a.parquet", out.getvalue())
    with pytest.raises(SetupError, match=r"a\.parquet: n is int64, declared int"):
        try_out(home.place, home.pipeline("numbers"), [str(path)], spark=home.spark)


def test_a_file_from_anywhere_is_read_by_the_source_of_its_format(home: Home) -> None:
    home.land("orders/a.jsonl", orders(0, 3))
    other = home.root / "sample.jsonl"
    other.write_bytes((home.landing / "orders/a.jsonl").read_bytes())
    assert tried(home, str(other)).delivered == 3
    with pytest.raises(SetupError, match="matches none of its patterns"):
        tried(home, str(home.write("notes.txt", "no record")))
    with pytest.raises(SetupError, match=r"No such file: .*gone\.jsonl"):
        tried(home, str(home.root / "gone.jsonl"))


def test_what_a_run_would_refuse_is_refused(home: Home) -> None:
    home.land("orders/a.jsonl", orders(0, 3))
    file = str(home.landing / "orders/a.jsonl")
    assert tried(home, file, file).files == [home.uri("orders/a.jsonl")]
    home.judge()
    keyed = replace(home.pipeline(), sink=Upsert(keys=("id",), newest="at"))
    unkeyed = replace(keyed, transform=lambda df, shops: df.drop("id"))
    with pytest.raises(TableRefused, match="id"):
        try_out(home.place, unkeyed, [file], spark=home.spark)
    hidden = home.landing / "orders/_a.jsonl"
    hidden.write_text("{}")
    with pytest.raises(SetupError, match="does not see"):
        tried(home, str(hidden))


def test_the_schema_is_shown_though_there_are_no_rows(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.land("orders/a.jsonl", orders(0, 3))
    show(tried(home, str(home.landing / "orders/a.jsonl"), most=0), plan=False)
    shown = capsys.readouterr().out
    assert "3 rows delivered, 0 held" in shown
    assert re.search(r"amount +double", shown)
    assert "reasons" not in shown


def test_the_command_shows_rows_rules_and_the_plan_and_exits_3_where_a_run_would_stop(home: Home) -> None:
    home.land("orders/a.jsonl", orders(0, 6, negative=[1]))
    file = str(home.landing / "orders/a.jsonl")
    shown = home.sluice_here("try", "orders", "--input", file, "--plan", "--rows", "2")
    assert shown.returncode == 0, shown.stderr
    assert "5 rows delivered, 1 held" in shown.stdout
    assert NEGATIVE in shown.stdout
    assert "Physical Plan" in shown.stdout
    home.judge(rule("column_values_to_be_between", NEGATIVE, "critical", column="amount", min_value=0))
    stopped = home.sluice_here("try", "orders", "--input", file, "--json")
    assert stopped.returncode == 3, stopped.stderr
    assert any(NEGATIVE in stop for stop in json.loads(stopped.stdout)["stops"])


def test_a_drafted_pipeline_delivers_each_record_of_the_sample_it_was_drafted_from(home: Home) -> None:
    who = {"name": "a", "tags": ["x"]}
    lines = [
        {"id": n, "at": f"2026-01-0{n}T10:00:00Z", "day": "2026-01-01", "who": who, "a b": f"{n}"}
        for n in (1, 2, 3)
    ]
    files = {name: home.landing / f"sample.{name}" for name in ("jsonl", "json", "csv", "parquet")}
    home.landing.mkdir(parents=True, exist_ok=True)
    files["jsonl"].write_text("\n".join(map(json.dumps, [*lines, {"id": 1 << 70}])))
    files["json"].write_text(json.dumps(lines, indent=1))
    files["csv"].write_text("id;when;code;price\n1;2026-01-01T10:00;007;1.5\n2;2026-01-02T11:00Z;010;\n")
    parquet = {
        "n": pa.array([1, 2], pa.uint32()),
        "x": [0.5, None],
        "s": pa.array(["a", "b"]).dictionary_encode(),
        "at": pa.array([0, 1], pa.timestamp("ns")),
    }
    pq.write_table(pa.table(parquet), files["parquet"])
    for name, file in files.items():
        drafts = draft(f"drafted_{name}", file, home.place.settings)
        found = etl.try_out(f"drafted_{name}", file, spark=home.spark, settings=home.place.settings)
        assert (found.delivered, found.held, found.malformed) == (drafts.sample.records, 0, 0)
        assert list(found.columns) == [column.name for column in drafts.sample.columns]
        assert all(result.success for result in found.verdict.results)


def test_a_pipeline_drafted_from_a_contract_runs_and_promises_the_same(home: Home) -> None:
    home.judge(*RULES)
    written = home.sluice_here("contract", "orders", "--version", "2.0.0")
    assert written.returncode == 0, written.stderr
    contract = parsed(written.stdout)
    [table] = contract["schema"]
    assert {one["name"]: (one["physicalType"], one.get("required")) for one in table["properties"]} == {
        "id": ("bigint", True),
        "shop": ("text", None),
        "amount": ("double precision", None),
        "at": ("timestamp with time zone", None),
        "city": ("text", None),
    }
    assert [
        (one["type"], one["schema" if one["type"] == "postgresql" else "format"])
        for one in contract["servers"]
    ] == [
        ("postgresql", "warehouse"),
        ("s3", "iceberg"),
    ]
    assert contract["servers"][1]["location"].endswith("/warehouse/orders")

    table["properties"][0]["description"] = 'The order\'s number, \\ as "written"; not its place'
    who = {"name": "a b", "logicalType": "integer", "logicalTypeOptions": {"format": "i64"}}
    nested = {"name": "who", "logicalType": "object", "physicalType": "text", "properties": [who]}
    table["properties"].append(nested)
    contract.pop("description", None)
    file = home.write("contract.yaml", dumped(contract))
    drafts = contracts.draft("again", file, home.place.settings)
    assert drafts.left_out == []
    rows = [{"id": n, "amount": n - 1, "who": {"a b": n}} for n in range(25)]
    home.write("again/a.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    assert home.run("again").delivered == 24
    assert home.ask("SELECT amount, who FROM warehouse.again WHERE id = 7") == [(6.0, '{"a b":7}')]
    assert home.ask("SELECT reasons FROM sluice.quarantine WHERE pipeline = 'again'") == [([NEGATIVE],)]

    [again] = parsed(home.sluice_here("contract", "again").stdout)["schema"]
    assert again["properties"] == table["properties"]
