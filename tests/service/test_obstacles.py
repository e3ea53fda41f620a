"""What others put on a table: found before a row is written, or by the commit that it would have spoilt."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import psycopg2
import pyarrow as pa
import pytest
from psycopg2.extensions import make_dsn

from etl.common.database import transaction
from etl.common.errors import SetupError, TableRefused
from etl.common.outages import raising_service_errors
from etl.common.steps import Step
from etl.delivery import correction
from etl.delivery.batch import DeliveryContext
from etl.delivery.correction import Correction
from etl.delivery.deliver import deliver, deliver_correction
from etl.pipeline import Append, Replace, Sink, Upsert
from etl.sinks.columns import RowIdentity
from etl.sinks.lake.lake import Lake
from etl.sinks.open import open_sinks
from etl.sinks.warehouse.staged_rows import Winners
from etl.sinks.warehouse.staging import StagingTables, StagingWriter, delivered_wire
from tests.support import oracle
from tests.support.arrow_driver import ArrowBatch, pipeline, reader, start
from tests.support.events_run import at, staged_left

pytestmark = pytest.mark.long

COLUMNS = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("text", pa.string())])
UPSERT = Upsert(keys=("id",), newest="at")
SINKS: dict[str, Sink] = {"append": Append(), "upsert": UPSERT, "replace": Replace()}
TABLE = "id bigint, at bigint, text text, _stream_id uuid, _batch_id bigint, _delivery_id bigint"
PARTITIONED = f"""
CREATE SCHEMA warehouse;
CREATE TABLE warehouse.things ({TABLE}) PARTITION BY RANGE (id);
CREATE TABLE warehouse.few PARTITION OF warehouse.things FOR VALUES FROM (0) TO (100);
"""
KEEPS_OUT = """
CREATE FUNCTION warehouse.keep_out() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER keeps_out BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION warehouse.keep_out()
"""
Row = tuple[Any, ...]
FIRST: list[Row] = [(1, 1, "a"), (2, 1, "b")]
UNFIT: Row = (9, 1, "\0")  # PostgreSQL's text can't hold it
SECOND: list[Row] = [(2, 2, "c"), (3, 2, "d")]


def batch(number: int, rows: list[Row], columns: pa.Schema = COLUMNS) -> ArrowBatch:
    arrays = [
        pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), columns.types, strict=True)
    ]
    arrays.append(pa.array([0] * len(rows), pa.int64()))
    part = pa.RecordBatch.from_arrays(arrays, names=[*columns.names, "_flags0"])
    return ArrowBatch(batch_id=number, parts=[[part]])


def begun(dsn: str, lake: Lake, sink: Sink) -> DeliveryContext:
    return start(dsn, lake, pipeline("things", sink), columns=COLUMNS)


def give_up(dsn: str) -> None:
    """Give back the lease of a run that could not open its sinks."""
    oracle.ask(dsn, "UPDATE sluice.pipeline SET lease_token = NULL")


def table(run: DeliveryContext) -> Counter[Row]:
    """Return the rows of the table in PostgreSQL."""
    return reader(run).in_postgres(system=())


def on_lake(run: DeliveryContext) -> Counter[Row]:
    return reader(run).on_lake(system=())


def of_sink(sink: Sink, *batches: list[Row]) -> Counter[Row]:
    """Return what a sink's table has after these batches."""
    if isinstance(sink, Append):
        return Counter(row for rows in batches for row in rows)
    if isinstance(sink, Replace):
        return Counter(batches[-1])
    return Counter({row[0]: row for rows in batches for row in rows}.values())


def beside(run: DeliveryContext, number: int, removed: int) -> DeliveryContext:
    """Begin a replay of one delivery."""
    dsn = run.sinks.dsn
    files = oracle.ask(dsn, "SELECT kind, path FROM sluice.delivery_file WHERE delivery_id = %s", [number])
    change = Correction(
        name="replay",
        supersedes=(number,),
        removed=removed,
        files={kind: frozenset(path for of, path in files if of == kind) for kind in ("data", "quarantine")},
        who="tests",
        why="again",
    )
    with transaction(dsn) as cursor:
        lease = correction.begin(cursor, "things", "replay", who="tests", why="again")
    return replace(run, lease=lease, stream_id=lease.run_id, checkpoint=None, correction=change)


# While a run is up

PUT_ON = {
    "a trigger": ("trigger keeps_out", KEEPS_OUT.format("warehouse.things"), "DROP TRIGGER keeps_out ON {t}"),
    "a rule": (
        "rule nothing",
        "CREATE RULE nothing AS ON INSERT TO {t} DO INSTEAD NOTHING",
        "DROP RULE nothing ON {t}",
    ),
    "row security": (
        "row level security",
        "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE {t} DISABLE ROW LEVEL SECURITY",
    ),
    "a constraint": (
        "CHECK constraint small",
        "ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 100)",
        "ALTER TABLE {t} DROP CONSTRAINT small",
    ),
    "a column that is never null": (
        "NOT NULL on column text",
        "ALTER TABLE {t} ALTER text SET NOT NULL",
        "ALTER TABLE {t} ALTER text DROP NOT NULL",
    ),
    "a unique index": (
        "UNIQUE index warehouse.once",
        "CREATE UNIQUE INDEX once ON {t} (text)",
        "DROP INDEX warehouse.once",
    ),
    "a table below it": (
        "a table that inherits from it: warehouse.below",
        "CREATE TABLE warehouse.below () INHERITS ({t})",
        "DROP TABLE warehouse.below",
    ),
    "no log": ("is UNLOGGED", "ALTER TABLE {t} SET UNLOGGED", "ALTER TABLE {t} SET LOGGED"),
}


@pytest.mark.parametrize(
    ("sink", "what"),
    [*((sink, "a trigger") for sink in SINKS), *(("upsert", what) for what in PUT_ON if what != "a trigger")],
)
def test_what_is_put_on_a_table_while_a_run_is_up_is_found_by_the_commit(
    dsn: str, lake: Lake, sink: str, what: str
) -> None:
    run = begun(dsn, lake, SINKS[sink])
    deliver(run, batch(0, FIRST))
    seen, put_on, take_off = (one.replace("{t}", "warehouse.things") for one in PUT_ON[what])
    with pytest.raises(TableRefused, match=f"no longer fits.*it has .*{seen}") as refused:
        deliver(at(run, Step.POINTER_DRAFTED, lambda: oracle.ask(dsn, put_on)), batch(1, SECOND))
    assert refused.value.exit_code == 2
    assert table(run) == Counter(FIRST)
    assert on_lake(run) == Counter(FIRST)
    assert staged_left(run) == []
    oracle.ask(dsn, take_off)
    deliver(run, batch(1, SECOND))
    assert table(run) == of_sink(SINKS[sink], FIRST, SECOND)


@pytest.mark.parametrize("sink", SINKS.values(), ids=SINKS)
def test_what_is_put_on_a_partition_while_a_run_is_up_is_found_by_the_commit(
    dsn: str, lake: Lake, sink: Sink
) -> None:
    oracle.ask(dsn, PARTITIONED)
    run = begun(dsn, lake, sink)
    deliver(run, batch(0, FIRST))
    put_on = KEEPS_OUT.format("warehouse.few")
    with pytest.raises(TableRefused, match=r"trigger keeps_out on its partition warehouse\.few"):
        deliver(at(run, Step.POINTER_DRAFTED, lambda: oracle.ask(dsn, put_on)), batch(1, SECOND))
    assert table(run) == Counter(FIRST)
    oracle.ask(dsn, "DROP TRIGGER keeps_out ON warehouse.few")
    deliver(run, batch(1, SECOND))
    assert table(run) == of_sink(sink, FIRST, SECOND)


def test_nobody_puts_anything_on_a_table_between_the_look_and_the_end_of_the_commit(
    dsn: str, lake: Lake
) -> None:
    run = begun(dsn, lake, UPSERT)
    deliver(run, batch(0, FIRST))
    tried = []

    def put_on() -> None:
        with pytest.raises(psycopg2.errors.LockNotAvailable) as refused:
            oracle.ask(dsn, "SET lock_timeout = '1s';" + KEEPS_OUT.format("warehouse.things"))
        tried.append(refused.value)
        assert oracle.ask(dsn, "SELECT count(*) FROM warehouse.things") == [(2,)], "readers go on"

    deliver(at(run, Step.ROWS_MERGED, put_on), batch(1, SECOND))
    assert len(tried) == 1
    assert table(run) == of_sink(UPSERT, FIRST, SECOND)


def test_an_index_of_the_keys_that_is_gone_is_told_and_made_anew(dsn: str, lake: Lake) -> None:
    run = begun(dsn, lake, UPSERT)
    deliver(run, batch(0, FIRST))
    drop = "DROP INDEX warehouse.things_sluice_key"
    with pytest.raises(TableRefused, match="unique index things_sluice_key is gone"):
        deliver(at(run, Step.POINTER_DRAFTED, lambda: oracle.ask(dsn, drop)), batch(1, SECOND))
    with transaction(dsn) as cursor:
        run.sinks.warehouse.open(cursor)
    deliver(run, batch(1, SECOND))
    assert table(run) == of_sink(UPSERT, FIRST, SECOND)


@pytest.mark.parametrize("is_left", ["not unique", "not valid"])
def test_an_index_that_has_the_name_of_the_keys_own_and_is_another_is_told_at_the_start(
    dsn: str, lake: Lake, is_left: str
) -> None:
    run = begun(dsn, lake, UPSERT)
    deliver(run, batch(0, FIRST))
    oracle.ask(dsn, "DROP INDEX warehouse.things_sluice_key")
    if is_left == "not unique":
        oracle.ask(dsn, "CREATE INDEX things_sluice_key ON warehouse.things (id)")
    else:
        leave_invalid(dsn, "CREATE UNIQUE INDEX CONCURRENTLY things_sluice_key ON warehouse.things (id)")
    with (
        pytest.raises(TableRefused, match="is no valid unique index of table") as refused,
        transaction(dsn) as cursor,
    ):
        run.sinks.warehouse.open(cursor)
    [way] = re.findall("`(.+?)`", refused.value.remedy)
    assert way == 'DROP INDEX "warehouse"."things_sluice_key"'
    oracle.ask(dsn, way)
    with transaction(dsn) as cursor:
        run.sinks.warehouse.open(cursor)
    deliver(run, batch(1, SECOND))
    assert table(run) == of_sink(UPSERT, FIRST, SECOND)


def leave_invalid(dsn: str, create: str) -> None:
    """Create an index concurrently, which fails for two rows of one key and leaves it, then remove one of them."""
    oracle.ask(dsn, "INSERT INTO warehouse.things SELECT * FROM warehouse.things WHERE id = 1")
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with pytest.raises(psycopg2.errors.UniqueViolation), connection.cursor() as cursor:
        cursor.execute(create)
    connection.close()
    oracle.ask(
        dsn, "DELETE FROM warehouse.things WHERE ctid = (SELECT max(ctid) FROM warehouse.things WHERE id = 1)"
    )


def test_a_policy_that_hides_rows_is_an_error_and_no_loss_of_rows(dsn: str, lake: Lake) -> None:
    run = begun(dsn, lake, Append())
    deliver(run, batch(0, FIRST))
    oracle.ask(
        dsn,
        "ALTER TABLE warehouse.things ENABLE ROW LEVEL SECURITY; ALTER TABLE warehouse.things FORCE ROW LEVEL SECURITY",
    )
    sinks = run.sinks
    with pytest.raises(SetupError, match="row-level security policy for table") as refused:
        open_sinks(sinks.pipeline, sinks.columns, dsn=dsn, lake=lake)
    assert "DISABLE ROW LEVEL SECURITY" in refused.value.remedy
    oracle.ask(dsn, "ALTER TABLE warehouse.things DISABLE ROW LEVEL SECURITY")
    open_sinks(sinks.pipeline, sinks.columns, dsn=dsn, lake=lake)
    assert table(run) == Counter(FIRST)


def test_a_trigger_on_the_held_rows_that_raises_is_named(dsn: str, lake: Lake) -> None:
    run = begun(dsn, lake, Append())
    oracle.ask(
        dsn,
        """CREATE FUNCTION public.calls() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'webhook down'; END $$;
           CREATE TRIGGER calls BEFORE INSERT ON sluice.quarantine FOR EACH STATEMENT EXECUTE FUNCTION public.calls()""",
    )
    held = batch(0, [*FIRST, UNFIT])
    with pytest.raises(
        TableRefused, match=r"sluice\.quarantine can't take.*webhook down.*calls\(\)"
    ) as refused:
        deliver(run, held)
    assert "take off the trigger" in refused.value.remedy
    oracle.ask(dsn, "DROP TRIGGER calls ON sluice.quarantine")
    deliver(run, held)
    assert table(run) == Counter(FIRST)


def test_what_keeps_held_rows_out_without_a_word_is_no_loss_of_staged_rows(dsn: str, lake: Lake) -> None:
    run = begun(dsn, lake, Append())
    oracle.ask(
        dsn,
        """CREATE FUNCTION public.mutes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
           CREATE TRIGGER mutes BEFORE INSERT ON sluice.quarantine FOR EACH ROW EXECUTE FUNCTION public.mutes()""",
    )
    with pytest.raises(TableRefused, match=r'"sluice"[.]"quarantine" did not take 1 of 1 row') as refused:
        deliver(run, batch(0, [*FIRST, UNFIT]))
    assert "a trigger, most likely" in refused.value.remedy
    oracle.ask(dsn, "DROP TRIGGER mutes ON sluice.quarantine")
    assert deliver(run, batch(0, [*FIRST, UNFIT])).quarantined == 1
    assert table(run) == Counter(FIRST)


def test_a_rule_keeps_no_held_row_out(dsn: str, lake: Lake) -> None:
    run = begun(dsn, lake, Append())
    oracle.ask(dsn, "CREATE RULE mutes AS ON INSERT TO sluice.quarantine DO INSTEAD NOTHING")
    assert deliver(run, batch(0, [*FIRST, UNFIT])).quarantined == 1
    assert oracle.ask(dsn, "SELECT count(*) FROM sluice.quarantine") == [(1,)]


def test_a_table_that_is_gone_is_told(dsn: str, lake: Lake) -> None:
    run = begun(dsn, lake, Append())
    rename = "ALTER TABLE warehouse.things RENAME TO {}"
    with pytest.raises(TableRefused, match="is gone: somebody dropped or renamed it"):
        deliver(
            at(run, Step.POINTER_DRAFTED, lambda: oracle.ask(dsn, rename.format("others"))), batch(0, FIRST)
        )
    oracle.ask(dsn, "ALTER TABLE warehouse.others RENAME TO things")
    deliver(run, batch(0, FIRST))
    assert table(run) == Counter(FIRST)


# Partitions


@pytest.mark.parametrize(
    ("put_on", "seen"),
    [
        (KEEPS_OUT.format("warehouse.few"), r"trigger keeps_out on its partition warehouse\.few"),
        ("ALTER TABLE warehouse.few ADD CONSTRAINT c CHECK (at > 0)", r"CHECK constraint c on its partition"),
        ("ALTER TABLE warehouse.few ALTER text SET NOT NULL", r"NOT NULL on column text on its partition"),
        (
            "CREATE UNIQUE INDEX once ON warehouse.few (text)",
            r"UNIQUE index warehouse\.once on its partition",
        ),
        ("ALTER TABLE warehouse.few ADD PRIMARY KEY (id)", r"UNIQUE constraint few_pkey on its partition"),
        ("DROP TABLE warehouse.few", "no partition, so that no row has a place"),
        (
            """CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere;
            CREATE FOREIGN TABLE warehouse.far PARTITION OF warehouse.things DEFAULT SERVER nowhere""",
            r"a partition of another kind than an ordinary table on its partition warehouse\.far",
        ),
    ],
    ids=["trigger", "check", "not null", "unique", "primary key", "none", "foreign"],
)
def test_what_is_wrong_with_a_partition_is_told_at_the_start(
    dsn: str, lake: Lake, put_on: str, seen: str
) -> None:
    oracle.ask(dsn, PARTITIONED)
    oracle.ask(make_dsn(dsn, user="postgres"), put_on)
    with pytest.raises(TableRefused, match=f"does not fit.*{seen}"):
        begun(dsn, lake, Append())


@pytest.mark.parametrize("sink", SINKS.values(), ids=SINKS)
def test_partitions_that_only_say_what_is_theirs_are_taken(dsn: str, lake: Lake, sink: Sink) -> None:
    oracle.ask(dsn, PARTITIONED)
    oracle.ask(
        dsn,
        f"CREATE TABLE warehouse.more ({TABLE}, CONSTRAINT bound CHECK (id IS NOT NULL AND id >= 100 AND id < 200));"
        "ALTER TABLE warehouse.things ATTACH PARTITION warehouse.more FOR VALUES FROM (100) TO (200);"
        "CREATE TABLE warehouse.rest PARTITION OF warehouse.things DEFAULT PARTITION BY HASH (id);"
        "CREATE TABLE warehouse.half PARTITION OF warehouse.rest FOR VALUES WITH (modulus 2, remainder 0);"
        "CREATE TABLE warehouse.other_half PARTITION OF warehouse.rest FOR VALUES WITH (modulus 2, remainder 1)",
    )
    run = begun(dsn, lake, sink)
    rows: list[list[Row]] = [
        [(id_, 1, "a") for id_ in (1, 101, 201, 202, 203)],
        [(id_, 2, "b") for id_ in (1, 102, 202)],
    ]
    for number, of_batch in enumerate(rows):
        deliver(run, batch(number, of_batch))
    assert table(run) == of_sink(sink, *rows)
    with transaction(dsn) as cursor:
        run.sinks.warehouse.open(cursor)


@pytest.mark.parametrize("sink", SINKS.values(), ids=SINKS)
def test_a_partition_that_is_missing_is_told_and_waited_for(dsn: str, lake: Lake, sink: Sink) -> None:
    oracle.ask(dsn, PARTITIONED)
    run = begun(dsn, lake, sink)
    deliver(run, batch(0, FIRST))
    rows: list[Row] = [(2, 2, "c"), (100, 2, "d")]
    with pytest.raises(TableRefused, match=r"no partition of relation.*\(id\) = \(100\)") as refused:
        deliver(run, batch(1, rows))
    assert "create the partition" in refused.value.remedy
    assert table(run) == Counter(FIRST)
    assert on_lake(run) == Counter(FIRST)
    oracle.ask(
        dsn, "CREATE TABLE warehouse.more PARTITION OF warehouse.things FOR VALUES FROM (100) TO (200)"
    )
    deliver(run, batch(1, rows))
    assert table(run) == of_sink(sink, FIRST, rows)


# Indexes that a value fails


@pytest.mark.parametrize("length", [2_000, 9_000])
def test_a_text_that_an_index_can_not_take_is_told(dsn: str, lake: Lake, length: int) -> None:
    sink = UPSERT
    run = begun(dsn, lake, sink)
    deliver(run, batch(0, FIRST))
    oracle.ask(dsn, "CREATE INDEX by_text ON warehouse.things (text)")
    rows: list[Row] = [(2, 2, random.Random(1).randbytes(length).hex())]
    with pytest.raises(TableRefused, match=r"index row .*: index warehouse\.by_text") as refused:
        deliver(run, batch(1, rows))
    assert "drop the index" in refused.value.remedy
    assert table(run) == on_lake(run) == Counter(FIRST)
    oracle.ask(dsn, "DROP INDEX warehouse.by_text")
    deliver(run, batch(1, rows))
    assert table(run) == of_sink(sink, FIRST, rows)


@pytest.mark.parametrize(
    ("sink", "create", "said"),
    [
        (Append(), "CREATE INDEX computed ON warehouse.things ((1 / (at - 7)))", "division by zero"),
        (UPSERT, "CREATE INDEX computed ON warehouse.things (id) WHERE 1 / (at - 7) > 0", "division by zero"),
        (
            Replace(),
            """CREATE FUNCTION warehouse.f(n bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
            'BEGIN IF n = 7 THEN RAISE ''seven''; END IF; RETURN n; END';
            CREATE INDEX computed ON warehouse.things (warehouse.f(at))""",
            r"seven; PL/pgSQL function warehouse\.f",
        ),
        (
            Append(),
            """CREATE FUNCTION warehouse.f(n bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
            'BEGIN IF n = 7 THEN RAISE ''seven'' USING ERRCODE = ''ZZ001''; END IF; RETURN n; END';
            CREATE INDEX computed ON warehouse.things (warehouse.f(at))""",
            "seven",
        ),
        (
            Append(),
            """CREATE FUNCTION warehouse.f(n bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
            'BEGIN IF n = 7 THEN RAISE ''seven'' USING ERRCODE = ''XX000''; END IF; RETURN n; END';
            CREATE INDEX computed ON warehouse.things (warehouse.f(at))""",
            "seven",
        ),
    ],
    ids=["expression", "predicate", "function", "a code of its own", "an internal error"],
)
def test_a_value_for_which_an_index_fails_is_told_with_the_index(
    dsn: str, lake: Lake, sink: Sink, create: str, said: str
) -> None:
    run = begun(dsn, lake, sink)
    deliver(run, batch(0, FIRST))
    oracle.ask(dsn, create)
    deliver(run, batch(1, SECOND))
    with pytest.raises(TableRefused, match=rf"{said}.*index warehouse\.computed"):
        deliver(run, batch(2, [(2, 7, "e")]))
    assert table(run) == of_sink(sink, FIRST, SECOND)
    oracle.ask(dsn, "DROP INDEX warehouse.computed")
    deliver(run, batch(2, [(2, 7, "e")]))
    assert table(run) == of_sink(sink, FIRST, SECOND, [(2, 7, "e")])


# Publications


def test_a_publication_without_a_replica_identity_stops_what_changes_rows(dsn: str, lake: Lake) -> None:
    oracle.ask(dsn, f"CREATE SCHEMA warehouse; CREATE TABLE warehouse.things ({TABLE})")
    oracle.ask(dsn, "CREATE PUBLICATION all_of_it FOR TABLE warehouse.things")
    for sink in (UPSERT, Replace()):
        with pytest.raises(TableRefused, match="publication all_of_it, which publishes changes"):
            begun(dsn, lake, sink)
        give_up(dsn)
    run = begun(dsn, lake, Append())
    first = deliver(run, batch(0, FIRST))
    replay, again = beside(run, first.delivery_id, len(FIRST)), batch(0, SECOND)
    again.paths = ("events/again.jsonl",)
    with pytest.raises(TableRefused, match=r"can't be replaced.*publication all_of_it"):
        deliver_correction(replay, again)
    assert again.staged == [], "before a row is written"
    oracle.ask(dsn, "ALTER TABLE warehouse.things REPLICA IDENTITY FULL")
    deliver_correction(replay, again)
    assert table(run) == on_lake(run) == Counter(SECOND)


@pytest.mark.parametrize(
    "of", ["TABLE warehouse.things", "TABLE warehouse.few", "ALL TABLES", "TABLES IN SCHEMA warehouse"]
)
def test_every_kind_of_publication_is_seen_of_a_partition(dsn: str, lake: Lake, of: str) -> None:
    oracle.ask(dsn, PARTITIONED)
    superuser = make_dsn(dsn, user="postgres")
    oracle.ask(superuser, f"CREATE PUBLICATION all_of_it FOR {of}")
    with pytest.raises(TableRefused, match=r"publication all_of_it.* on its partition warehouse\.few"):
        begun(dsn, lake, UPSERT)
    oracle.ask(superuser, "ALTER PUBLICATION all_of_it SET (publish = 'insert, truncate')")
    give_up(dsn)
    run = begun(dsn, lake, UPSERT)
    for number, rows in enumerate((FIRST, SECOND)):
        deliver(run, batch(number, rows))
    assert table(run) == of_sink(UPSERT, FIRST, SECOND)


def test_a_publication_that_is_made_while_a_run_is_up_is_found(dsn: str, lake: Lake) -> None:
    run = begun(dsn, lake, UPSERT)
    deliver(run, batch(0, FIRST))
    publish = "CREATE PUBLICATION late FOR TABLE warehouse.things"
    with pytest.raises(TableRefused, match="publication late"):
        deliver(at(run, Step.POINTER_DRAFTED, lambda: oracle.ask(dsn, publish)), batch(1, SECOND))
    oracle.ask(dsn, "ALTER TABLE warehouse.things REPLICA IDENTITY FULL")
    deliver(run, batch(1, SECOND))
    assert table(run) == of_sink(UPSERT, FIRST, SECOND)


# Foreign keys of others

MINE = """
CREATE TABLE warehouse.mine (id bigint REFERENCES warehouse.things (id) {});
INSERT INTO warehouse.mine VALUES (1), (2)
"""


@pytest.mark.parametrize(
    ("action", "seen"),
    [
        ("ON DELETE CASCADE", "which deletes rows there"),
        ("ON DELETE SET NULL", "which sets columns there"),
        ("", "mine_id_fkey of table warehouse.mine on it"),
    ],
)
def test_a_replay_leaves_alone_what_refers_to_its_rows(dsn: str, lake: Lake, action: str, seen: str) -> None:
    run = begun(dsn, lake, UPSERT)
    first = deliver(run, batch(0, FIRST))
    oracle.ask(dsn, MINE.format(action))
    deliver(run, batch(1, SECOND))
    assert table(run) == of_sink(UPSERT, FIRST, SECOND), "a batch removes nothing"
    again = batch(0, [(5, 1, "a")])
    again.paths = ("events/again.jsonl",)
    with pytest.raises(TableRefused, match=f"FOREIGN KEY constraint .*{seen}"):
        deliver_correction(beside(run, first.delivery_id, 2), again)
    assert again.staged == []
    assert oracle.ask(dsn, "SELECT id FROM warehouse.mine ORDER BY 1") == [(1,), (2,)]
    assert table(run) == of_sink(UPSERT, FIRST, SECOND)


def test_a_foreign_key_that_is_made_while_a_replay_is_up_is_found_by_its_commit(dsn: str, lake: Lake) -> None:
    run = begun(dsn, lake, UPSERT)
    first = deliver(run, batch(0, FIRST))
    again = batch(0, [(5, 1, "a")])
    again.paths = ("events/again.jsonl",)
    refer = MINE.format("ON DELETE CASCADE")
    replay = at(beside(run, first.delivery_id, 2), Step.POINTER_DRAFTED, lambda: oracle.ask(dsn, refer))
    with pytest.raises(
        TableRefused, match=r"mine_id_fkey of table warehouse\.mine on it, which deletes rows"
    ):
        deliver_correction(replay, again)
    assert oracle.ask(dsn, "SELECT count(*) FROM warehouse.mine") == [(2,)]
    assert table(run) == on_lake(run) == Counter(FIRST)


def test_a_unique_index_that_others_refer_to_is_still_seen(dsn: str, lake: Lake) -> None:
    oracle.ask(
        dsn,
        f"CREATE SCHEMA warehouse; CREATE TABLE warehouse.things ({TABLE});"
        "CREATE UNIQUE INDEX once ON warehouse.things (at);"
        "CREATE TABLE warehouse.mine (at bigint REFERENCES warehouse.things (at))",
    )
    with pytest.raises(TableRefused, match=r"UNIQUE index warehouse\.once"):
        begun(dsn, lake, Append())


# What was merged


@pytest.mark.parametrize("sink", [Append(), UPSERT], ids=["append", "upsert"])
def test_rows_that_the_table_does_not_take_are_missed_whatever_kept_them_out(
    dsn: str, lake: Lake, sink: Sink
) -> None:
    run = begun(dsn, lake, sink)
    deliver(run, batch(0, [(1, 9, "newer"), (2, 1, "b")]))
    tables = StagingTables(dsn=dsn, delivery_id=9, run_id="x", merges=sink is UPSERT)
    identity = RowIdentity(run.stream_id, 1, 9)
    rows = pa.RecordBatch.from_pylist(
        [{"id": 1, "at": 1, "text": "covered"}, {"id": 3, "at": 1, "text": "new"}], COLUMNS
    )
    with transaction(dsn) as cursor:
        run.sinks.warehouse.create_staging(cursor, tables)
    with StagingWriter(tables, 7) as staging:
        if tables.rows:
            staging.copy(tables.rows, rows)
        else:
            staging.pack(delivered_wire(rows, identity), held=False)
        winners = Winners(tables=tables, tasks=[7], reported=staging.commit())

    def merge() -> None:
        with transaction(dsn) as cursor:
            run.sinks.warehouse.merge(cursor, winners, expected=2, identity=identity)

    oracle.ask(
        dsn,
        "CREATE FUNCTION warehouse.keep_out() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF new.id = 3 THEN RETURN NULL; END IF; RETURN new; END';"
        "CREATE TRIGGER keeps_out BEFORE INSERT ON warehouse.things FOR EACH ROW EXECUTE FUNCTION warehouse.keep_out()",
    )
    with pytest.raises(TableRefused, match="did not take 1 of 2 rows"):
        merge()
    oracle.ask(dsn, "DROP TRIGGER keeps_out ON warehouse.things")
    merge()
    assert (3, 1, "new") in table(run)
    assert ((1, 9, "newer") in table(run)) and ((1, 1, "covered") in table(run)) == isinstance(sink, Append)


# Limits that the columns tell


def wide(count: int) -> pa.Schema:
    return pa.schema([(f"c{number}", pa.float64()) for number in range(count)])


def test_the_widest_table_takes_its_largest_rows(dsn: str, lake: Lake) -> None:
    run = start(dsn, lake, pipeline("wide", Append()), columns=wide(997))
    rows: list[Row] = [(1.5,) * 997, (None, *(1.5,) * 996)]
    deliver(run, batch(0, rows, wide(997)))
    assert oracle.ask(dsn, "SELECT count(*), count(c0), sum(c996) FROM warehouse.wide") == [(2, 1, 3.0)]
    kinds = ", ".join(f"c{number} float8" for number in range(999))
    values = ", ".join("1.5" for _ in range(998))
    own = "_stream_id uuid, _batch_id bigint, _delivery_id bigint"
    with pytest.raises(psycopg2.errors.ProgramLimitExceeded, match="row is too big"):
        oracle.ask(
            dsn,
            f"CREATE TABLE warehouse.wider ({kinds}, {own});"
            f"INSERT INTO warehouse.wider VALUES (NULL, {values}, gen_random_uuid(), 1, 1)",
        )


@pytest.mark.parametrize(
    ("sink", "columns", "seen"),
    [
        (Append(), wide(999), r"a row with a value in each of its 999 columns takes 8,176 bytes.* 8,160"),
        (
            Append(),
            pa.schema([(f"c{number}", pa.bool_()) for number in range(1598)]),
            "it has 1,598 columns, and a table of PostgreSQL at most 1,597",
        ),
        (
            Upsert(keys=tuple(f"c{number}" for number in range(33)), newest="c33"),
            wide(34),
            "its key has 33 columns, and an index of PostgreSQL at most 32",
        ),
    ],
    ids=["row", "columns", "key"],
)
def test_columns_that_no_table_can_have_are_refused_at_the_start(
    dsn: str, lake: Lake, sink: Sink, columns: pa.Schema, seen: str
) -> None:
    with pytest.raises(TableRefused, match=seen) as refused:
        start(dsn, lake, pipeline("wide", sink), columns=columns)
    assert refused.value.exit_code == 2
    assert oracle.ask(dsn, "SELECT to_regclass('warehouse.wide')") == [(None,)]


def test_as_many_columns_as_a_table_can_have_are_delivered(dsn: str, lake: Lake) -> None:
    columns = pa.schema([(f"c{number}", pa.bool_()) for number in range(1597)])
    keys = tuple(f"c{number}" for number in range(32))
    run = start(dsn, lake, pipeline("wide", Upsert(keys=keys, newest="c32")), columns=columns)
    deliver(run, batch(0, [(True,) * 1597], columns))
    deliver(run, batch(1, [(True,) * 1596 + (False,)], columns))
    assert oracle.ask(dsn, "SELECT c0, c1596 FROM warehouse.wide") == [(True, False)]


def test_columns_that_were_dropped_count(dsn: str, lake: Lake) -> None:
    columns = pa.schema([(f"c{number}", pa.bool_()) for number in range(1500)])
    run = start(dsn, lake, pipeline("wide", Append()), columns=columns)
    deliver(run, batch(0, [(True,) * 1500], columns))
    gone = [f"gone{number} int" for number in range(97)]
    oracle.ask(
        dsn,
        f"ALTER TABLE warehouse.wide {', '.join(f'ADD {one}' for one in gone)};"
        f"ALTER TABLE warehouse.wide {', '.join(f'DROP {one.split()[0]}' for one in gone)}",
    )
    more = columns.append(pa.field("more", pa.bool_()))
    wider = replace(
        run, sinks=replace(run.sinks, columns=more, warehouse=replace(run.sinks.warehouse, columns=more))
    )
    with pytest.raises(TableRefused, match=r"can't have column more: .* and those that were dropped count"):
        deliver(wider, batch(1, [(True,) * 1501], more))


def test_a_row_whose_texts_make_it_too_large_is_told(dsn: str, lake: Lake) -> None:
    columns = pa.schema([(f"c{number}", pa.string()) for number in range(600)])
    run = start(dsn, lake, pipeline("wide", Append()), columns=columns)
    deliver(run, batch(0, [("x",) * 600], columns))
    told = pytest.raises(TableRefused, match="can't hold a row that was to be delivered: row is too big")
    with told, raising_service_errors():
        deliver(run, batch(1, [("x" * 50,) * 600], columns))
