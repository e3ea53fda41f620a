"""A renamed pipeline goes on as the one that it was: all that is on record of it goes along, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg2
import pyarrow as pa
import pytest

from etl.alerts.channels import pagerduty
from etl.alerts.outbox import Outbox
from etl.common.errors import Busy, SetupError, TableRefused
from etl.ledger.telemetry.alerts import Trouble
from etl.operations.audit.audit import audit
from etl.operations.control.rename import plan, rename
from etl.operations.control.retire import undeclared
from etl.pipeline import Append
from etl.services import Services
from etl.sinks.lake.lake import Lake
from tests.support.delivering import DECLARATION, Delivering
from tests.support.environment import REPOSITORY
from tests.support.forked import PATIENCE, Forked
from tests.support.receivers import receiving
from tests.support.waiting import until

ROWS = pa.table({"id": pa.array(range(4), pa.int64())})
TABLE = "warehouse.events"
NAMED = """
    SELECT format('SELECT %L, pipeline, count(*) FROM sluice.%I GROUP BY 2', c.relname, c.relname)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE c.relnamespace = 'sluice'::regnamespace AND c.relkind = 'r' AND a.attname = 'pipeline'
"""
# What no delivery of these tests leaves in the ledger, but others do.
MORE = (
    "INSERT INTO sluice.consumer (pipeline, name) VALUES ('events', 'reports')",
    "INSERT INTO sluice.published (schema_name, name, pipeline, published_by) VALUES ('r', 'e', 'events', 'Ada')",
    "INSERT INTO sluice.compared VALUES ('events', 'server') ON CONFLICT DO NOTHING",
    (
        "INSERT INTO sluice.accepted_gap (pipeline, topic, topic_id, partition, start_offset, who, why)"
        " VALUES ('events', 't', 'id', 0, 1, 'Ada', 'gone')"
    ),
    (
        "INSERT INTO sluice.delivery_range (delivery_id, pipeline, source, topic, topic_id, partition, start_offset,"
        " end_offset) SELECT min(delivery_id), 'events', 0, 't', 'id', 0, 0, 1 FROM sluice.delivery"
    ),
    (
        "INSERT INTO sluice.stopped_batch (stream_id, batch_id, pipeline, stops, report)"
        " SELECT stream_id, 9, 'events', ARRAY['rule'], '{}' FROM sluice.stream"
    ),
    (
        "INSERT INTO sluice.airflow_try (dag_id, dag_run_id, task_id, try_number, pipeline, run_type, clear_number)"
        " VALUES ('events', 'r', 'run', 1, 'events', 'manual', 0)"
    ),
    (
        "INSERT INTO sluice.model (pipeline, name, version, location, bytes, digest, threshold, trained_on,"
        " metadata_location, deliveries, rows_there, rows_fitted, report, made_by)"
        " VALUES ('events', 'm', 1, 's3://m', 1, repeat('0', 64), 1, 'x', 'x', 1, 1, 1, '{}', 'Ada')"
    ),
    "INSERT INTO sluice.orphans (pipeline, objects, bytes, seen_by) VALUES ('events', 0, 0, 'sweep')",
    "INSERT INTO sluice.maintenance (pipeline, command, differences) VALUES ('events', 'audit', 0)",
    "INSERT INTO sluice.alert_watch (pipeline, commit_seq) VALUES ('events', 1)",
    "INSERT INTO sluice.alert (pipeline, kind, known_as, text) VALUES ('events', 'failed', 'sluice/events/failed', 'no')",
)


@pytest.fixture
def declare(tmp_path: Path) -> Callable[..., Path]:
    """Declare the pipeline by one name, and by no other: `declare(name)`; `table=None` is the name's own."""
    folder = tmp_path / "pipelines"
    folder.mkdir()

    def declared(name: str, *, table: str | None = TABLE) -> Path:
        for file in folder.iterdir():
            file.unlink()
        text = DECLARATION.replace('name="events"', f'name="{name}"').replace("def events", f"def {name}")
        text = text.replace("transform=events", f"transform={name}").replace(
            'partition_by=day("at")', f"table={table!r}"
        )
        (folder / f"{name}.py").write_text(text)
        return folder

    return declared


@pytest.fixture
def events(
    services: Services, dsn: str, lake: Lake, tmp_path: Path, declare: Callable[..., Path]
) -> Delivering:
    """Return a pipeline that has delivered a batch, with a held row, and that is declared as `visits` now."""
    folder = declare("visits")
    found = Delivering.start(
        services, dsn, lake, tmp_path / "home", ROWS.schema, Append(), pipelines=(folder,)
    )
    found.deliver(ROWS, bad=[3])
    found.end()
    return found


def rows_by_name(events: Delivering) -> dict[str, dict[str, int]]:
    """Count the rows of each table of the ledger that name a pipeline, by that name."""
    counts = [events.execute(query) for (query,) in events.execute(NAMED)]
    return {rows[0][0]: {name: count for _, name, count in rows} for rows in counts if rows}


def test_all_that_is_on_record_goes_along_and_the_next_batch_follows_the_last(events: Delivering) -> None:
    for statement in MORE:
        events.execute(statement)
    before = rows_by_name(events)
    assert {query.split("sluice.")[1].split()[0] for (query,) in events.execute(NAMED)} == {
        *before,
        "renamed",
    }
    said = rename(events.place, "events", "visits", who="Ada")
    assert list(said.lines()) == [
        "events becomes visits, with 1 delivery, 1 held row and 1 consumer",
        (
            "what stays where it is: table warehouse.events in both sinks, its objects, and the checkpoints in"
            f" {events.place.settings.checkpoints}/events"
        ),
    ]
    assert "reports read the changes of visits" in "".join(said.by_hand())
    after = rows_by_name(events)
    assert after.pop("renamed") == {"visits": 1}
    assert after == {table: {"visits": rows["events"]} for table, rows in before.items()}
    assert events.execute("SELECT was, renamed_by FROM sluice.renamed") == [("events", "Ada")]
    events.execute("DELETE FROM sluice.stopped_batch")
    events.pipeline = replace(events.pipeline, name="visits", sink=Append(table=TABLE))
    events.restart()
    events.deliver(ROWS)
    assert events.execute(
        "SELECT pipeline, batch_id, commit_seq, previous_delivery FROM sluice.delivery ORDER BY 3"
    ) == [("visits", 0, 1, None), ("visits", 1, 2, 1)]
    assert audit(events.place, events.pipeline).clean
    assert undeclared(events.place, []) == []


def test_each_reference_to_a_pipelines_name_waits_for_the_end_of_a_rename(events: Delivering) -> None:
    references = events.execute(
        "SELECT conrelid::regclass::text, condeferrable FROM pg_constraint WHERE confrelid = 'sluice.pipeline'::regclass"
    )
    assert len(references) == 13
    assert [table for table, deferrable in references if not deferrable] == []


def test_a_rename_takes_as_long_as_its_rows_do_and_waits_for_a_lock_no_longer_than_before(
    events: Delivering,
) -> None:
    events.execute("CREATE TABLE public.under (lock text, statement text, transaction text)")
    events.execute(
        """CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO public.under VALUES (current_setting('lock_timeout'), current_setting('statement_timeout'),
        current_setting('transaction_timeout')); RETURN NULL; END $$"""
    )
    events.execute("CREATE TRIGGER look AFTER UPDATE ON sluice.quarantine EXECUTE FUNCTION public.look()")
    rename(events.place, "events", "visits", who="Ada")
    assert events.execute("SELECT * FROM public.under") == [("30s", "0", "0")]


def test_what_was_told_by_either_name_is_told_to_be_over_under_the_key_it_was_opened_with(
    events: Delivering,
) -> None:
    with receiving() as receiver:
        channel = pagerduty(lambda: "routing", lambda: receiver.address)
        outbox = Outbox(dsn=events.dsn, destinations=[channel.name], channels=[channel])
        for name in ("events", "visits"):  # the latter by a run that was refused before the rename
            outbox.tell(name, [Trouble(pipeline=name, kind="failed", text="exit code 2")])
        outbox.send()
        rename(events.place, "events", "visits", who="Ada")
        outbox.tell("visits", [Trouble(pipeline="visits", kind="failed", text="exit code 70")])
        outbox.send()
        told = [json.loads(body) for _, body in receiver.taken]
    keys = ["sluice/events/failed", "sluice/visits/failed"]
    assert [(one["event_action"], one["dedup_key"]) for one in told] == [
        *(("trigger", key) for key in keys),
        *(("resolve", key) for key in keys),
        ("trigger", "sluice/visits/failed"),
    ]
    assert events.execute("SELECT pipeline, resolved_by FROM sluice.alert ORDER BY alert_id") == [
        *[("visits", "events was renamed to visits")] * 2,
        ("visits", None),
    ]


@pytest.fixture
def command(events: Delivering, tmp_path: Path) -> Iterator[Callable[[], Forked]]:
    """Start `sluice rename events visits`; what still runs of it is killed at the end."""
    settings, services = events.place.settings, events.place.services
    environment = {
        **os.environ,
        **services.environment,
        "SLUICE_HOME": str(settings.home),
        "SLUICE_PIPELINES": str(settings.pipelines[0]),
        "SLUICE_LANDING": settings.landing,
        "SLUICE_POSTGRES": services.postgres,
        "SLUICE_LAKE": services.lake,
        "SLUICE_S3_ENDPOINT": services.s3_endpoint or "",
        "PYTHONPATH": str(REPOSITORY),
    }
    started: list[Forked] = []

    def start() -> Forked:
        out = tmp_path / f"out-{len(started)}"
        words = ("rename", "events", "visits")
        started.append(Forked.start("etl.cli", words, environment=environment, folder=tmp_path, out=out))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()


def test_a_rename_that_is_killed_halfway_has_done_nothing_and_the_same_command_does_it(
    events: Delivering, command: Callable[[], Forked], tmp_path: Path
) -> None:
    before = rows_by_name(events)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'UPDATE sluice.\"run\"' AND wait_event_type = 'Lock'"
    with psycopg2.connect(events.dsn) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLE sluice.run IN SHARE MODE")  # after some tables, and before others
        killed = command()
        until(lambda: events.execute(waits) == [(1,)], "the rename to come to this table", patience=PATIENCE)
        killed.process.kill()
        assert killed.wait(PATIENCE) < 0
    other.close()
    until(
        lambda: (
            events.execute(waits.replace("AND wait_event_type = 'Lock'", "AND pid <> pg_backend_pid()"))
            == [(0,)]
        ),
        "its transaction to end",
        patience=PATIENCE,
    )
    assert rows_by_name(events) == before
    assert command().wait(PATIENCE) == 0
    assert "by hand: Airflow: the history of the DAGs events and" in (tmp_path / "out-1").read_text()
    assert {name for names in rows_by_name(events).values() for name in names} == {"visits"}
    again = rename(events.place, "events", "visits", who="Ada")  # as after a kill that came when all was done
    assert "nothing is to be done" in "".join(again.lines())
    assert events.execute("SELECT count(*) FROM sluice.renamed") == [(1,)]


def test_a_plan_changes_nothing_and_a_name_comes_back(
    events: Delivering, declare: Callable[..., Path]
) -> None:
    assert plan(events.place, "events", "visits").done is None
    assert rows_by_name(events)["delivery"] == {"events": 1}
    rename(events.place, "events", "visits", who="Ada")
    declare("calls")
    rename(events.place, "visits", "calls", who="Ada")
    declare("visits")
    with pytest.raises(SetupError, match=r"Pipeline events is calls since .* as Ada has renamed it"):
        rename(events.place, "events", "visits", who="Ada")
    declare("events")
    back = rename(events.place, "calls", "events", who="Ada")
    assert back.checkpoints.endswith("/events")
    assert rows_by_name(events)["renamed"] == {"events": 3}


def test_what_is_declared_by_either_name_and_what_is_on_record_decide(
    events: Delivering, declare: Callable[..., Path]
) -> None:
    with pytest.raises(SetupError, match="No pipeline event has ever run; did you mean events"):
        rename(events.place, "event", "visits", who="Ada")
    with pytest.raises(SetupError, match="No pipeline is called 'calls'"):
        rename(events.place, "events", "calls", who="Ada")
    declare("visits", table=None)
    with pytest.raises(
        SetupError, match=r"has delivered to warehouse\.events; the sink of visits names"
    ) as told:
        rename(events.place, "events", "visits", who="Ada")
    assert 'write table="warehouse.events"' in told.value.remedy
    declare("events")
    with pytest.raises(SetupError, match=r"events is still declared, by .*events\.py"):
        rename(events.place, "events", "visits", who="Ada")
    declare("visits")
    events.execute("INSERT INTO sluice.pipeline (name, table_schema, table_name) VALUES ('visits', 'w', 'v')")
    with pytest.raises(SetupError, match="visits is on record by itself"):
        rename(events.place, "events", "visits", who="Ada")
    assert rows_by_name(events)["delivery"] == {"events": 1}


def test_a_pipeline_that_runs_is_not_renamed(events: Delivering) -> None:
    events.restart()
    with pytest.raises(Busy, match="events can't be renamed now: It runs on"):
        rename(events.place, "events", "visits", who="Ada")
    assert rows_by_name(events)["delivery"] == {"events": 1}


def test_a_run_by_the_new_name_is_refused_before_the_rename_and_one_by_the_old_name_after_it(
    events: Delivering,
) -> None:
    was, events.pipeline = events.pipeline, replace(events.pipeline, name="visits", sink=Append(table=TABLE))
    with pytest.raises(TableRefused, match="of pipeline visits belongs to pipeline events") as told:
        events.restart()
    assert "`sluice rename events visits`" in told.value.remedy
    rename(events.place, "events", "visits", who="Ada")
    for sink in (Append(table=TABLE), Append(table="warehouse.another")):
        events.pipeline = replace(was, sink=sink)
        with pytest.raises(
            SetupError, match=r"events is visits since .* no other pipeline can be called events"
        ):
            events.restart()
    assert [*rows_by_name(events)["run"]] == ["visits"]
