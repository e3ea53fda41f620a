"""The ledger's figures are Prometheus' text, by a command and by a scrape, and the dashboard asks for what there is."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import psycopg2
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from etl.common.database import transaction
from etl.common.errors import ContractBroken
from etl.ledger.telemetry import orphans
from etl.ledger.telemetry.metrics import FAMILIES, LedgerCollector, text
from etl.pipeline import Append, Pipeline
from etl.runs.telemetry import otlp_metrics
from etl.runs.telemetry.spans import traced
from etl.runs.workspace import Workspace
from etl.services import Services
from etl.sinks.lake.lake import Lake
from tests.support import arrow_driver
from tests.support.delivering import Delivering
from tests.support.environment import REPOSITORY
from tests.support.prometheus import panels, scraping
from tests.support.receivers import Receiver, receiving
from tests.support.waiting import until

COLUMNS = pa.schema([("id", pa.int64())])
ROWS = pa.table({"id": pa.array(range(20), pa.int64())})
OWN = ContractBroken("it broke its suite", remedy="sluice decide")
AWKWARD = 'a "b"\\\nc'  # of a label's value, all that Prometheus escapes
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    return Delivering.start(services, dsn, lake, tmp_path / "home", COLUMNS, Append())


def samples(written: str) -> Samples:
    found = [one for family in text_string_to_metric_families(written) for one in family.samples]
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for one in found}


def told(events: Delivering) -> Samples:
    with transaction(events.dsn, one_snapshot=True) as cursor:
        return samples(text(cursor))


def note_progress(events: Delivering) -> None:
    """Put on record how batch 1 ran."""
    events.execute(
        "INSERT INTO sluice.batch_progress (stream_id, batch_id, run_id, triggered_at, input_rows, durations_ms, phases_ms,"
        " operators, ends, behind) VALUES (%s, 1, %s, now(), 20, '{\"triggerExecution\": 1500}', '{\"transaction\": 250}',"
        " '[]', '{}', 7) RETURNING 1",
        events.session.stream_id,
        events.session.lease.run_id,
    )


def test_figures_are_the_ledgers(events: Delivering) -> None:
    events.deliver(ROWS)
    events.deliver(ROWS, bad=range(5))
    events.execute("INSERT INTO sluice.consumer (pipeline, name) VALUES ('events', %s) RETURNING 1", AWKWARD)
    note_progress(events)
    events.execute("UPDATE sluice.pipeline SET consumer_lag_limit = interval '2 hours'")
    found = told(events)
    pipeline, stream = ("pipeline", "events"), ("kind", "stream")
    own = {name: value for (name, labels), value in found.items() if labels == (pipeline,)}
    by_kind = {name: value for (name, labels), value in found.items() if labels == (stream, pipeline)}
    assert by_kind == {
        "sluice_deliveries_total": 2,
        "sluice_delivered_rows_total": 35,
        "sluice_quarantined_rows_total": 5,
        "sluice_malformed_records_total": 0,
        "sluice_dropped_rows_total": 0,
    }
    [(committed,)] = events.execute(
        "SELECT extract(epoch FROM max(committed_at))::float8 FROM sluice.delivery"
    )
    assert own == {
        "sluice_held_rows": 5,
        "sluice_last_batch_held_ratio": 0.25,
        "sluice_last_delivery_timestamp_seconds": committed,
        "sluice_last_batch_seconds": 1.5,
        "sluice_source_lag_records": 7,
        "sluice_running_runs": 1,
        "sluice_lineage_unsent_events": 0,
        "sluice_consumer_lag_limit_seconds": 7200,
    }
    assert found["sluice_last_batch_phase_seconds", (("phase", "transaction"), pipeline)] == 0.25
    assert found["sluice_attempts", (("outcome", "delivered"), pipeline)] == 2
    consumer = ("consumer", AWKWARD)
    assert found["sluice_consumer_lag_deliveries", (consumer, pipeline)] == 2
    assert found["sluice_consumer_lag_rows", (consumer, pipeline)] == 35
    events.end()
    assert told(events)["sluice_runs_total", (stream, ("outcome", "died"), pipeline)] == 1
    events.execute("UPDATE sluice.pipeline SET retired_at = now() RETURNING 1")
    assert told(events) == {}


@pytest.fixture
def failing(events: Delivering) -> Iterator[tuple[Callable[[], object], Receiver]]:
    """Yield a run that fails on its own, and the collector that is to have its metrics."""

    def run(_workspace: Workspace, _pipeline: Pipeline) -> object:
        raise OWN

    with receiving() as collector:
        settings = events.place.settings.model_copy(update={"otlp": collector.address})
        place = replace(events.place, settings=settings)
        yield lambda: traced(run)(place, events.pipeline), collector


def sent(collector: Receiver) -> int:
    return sum(path == "/v1/metrics" for path, _ in collector.taken)


def test_metrics_that_take_long_to_read_end_no_run_in_another_way(
    events: Delivering,
    failing: tuple[Callable[[], object], Receiver],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, collector = failing
    monkeypatch.setattr(otlp_metrics, "LONGEST", "200ms")
    with closing(psycopg2.connect(events.dsn)) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLE sluice.delivery")  # for longer than any sum would take
        with pytest.raises(ContractBroken) as raised:
            run()
    assert (raised.value, sent(collector)) == (OWN, 0)
    assert (
        "the metrics of events could not be sent: canceling statement due to statement timeout" in caplog.text
    )
    with pytest.raises(ContractBroken):
        run()
    assert sent(collector) == 1


def test_metrics_that_can_not_be_sent_for_whatever_reason_end_no_run_in_another_way(
    failing: tuple[Callable[[], object], Receiver],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, collector = failing
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_METRICS_CREDENTIAL_PROVIDER", "nobody")
    with pytest.raises(ContractBroken) as raised:
        run()
    assert (raised.value, sent(collector)) == (OWN, 0)
    assert "the metrics of events could not be sent: Requested component 'nobody' not found" in caplog.text


def test_names_are_as_prometheus_has_them() -> None:
    assert len({one.name for one in FAMILIES}) == len(FAMILIES)
    for one in FAMILIES:
        assert re.fullmatch(r"sluice(_[a-z]+)+", one.name)
        assert not one.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert one.says
        assert one.says[0].isupper() or one.says[0].isdigit()


@pytest.fixture
def scraped(events: Delivering) -> Iterator[str]:
    registry = CollectorRegistry()
    registry.register(LedgerCollector(dsn=events.dsn))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()
    assert thread not in threading.enumerate()


def test_a_scrape_reads_the_ledger_anew(events: Delivering, scraped: str) -> None:
    name = "sluice_deliveries_total", (("kind", "stream"), ("pipeline", "events"))
    for delivered in (1, 2):
        events.deliver(ROWS)
        answer = httpx.get(scraped)
        assert answer.headers["content-type"].startswith("text/plain")
        assert samples(answer.text)[name] == delivered


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    named = {name for one in asked for name in re.findall(r"sluice_\w+", one)}
    there = {one.name + "_total" * one.counts for one in FAMILIES}
    assert len(asked) > 8
    assert named <= there
    assert len({panel["id"] for panel in panels()}) == len(panels())


@pytest.mark.slow
def test_prometheus_has_data_for_every_panel_of_the_dashboard(
    events: Delivering, scraped: str, tmp_path: Path
) -> None:
    events.deliver(ROWS)
    events.execute("INSERT INTO sluice.consumer (pipeline, name) VALUES ('events', 'delays') RETURNING 1")
    events.execute("UPDATE sluice.pipeline SET consumer_lag_limit = interval '2 hours' RETURNING 1")
    with scraping(
        scraped.removeprefix("http://").removesuffix("/metrics"), tmp_path / "own", every=1
    ) as seen:
        until(lambda: seen.ask("sluice_held_rows"), "the first scrape", patience=60)
        events.deliver(ROWS, bad=range(5))
        with pytest.raises(ContractBroken):
            events.deliver(ROWS, judged=arrow_driver.broken("rule", table_rule=True))
        note_progress(events)
        orphans.note(events.dsn, "events", [5, 7], seen_by="audit")
        events.end()

        def shown() -> dict[str, list[float]]:
            """Return by the title of each panel the values of each of its expressions; none where one has no data."""
            asked = [
                (panel["title"], seen.ask(seen.expression(one["expr"])))
                for panel in panels()
                for one in panel["targets"]
            ]
            empty = {title for title, series in asked if not series}
            return {
                title: [float(one["value"][1]) for one in series]
                for title, series in asked
                if title not in empty
            }

        titles = {panel["title"] for panel in panels()}
        until(lambda: shown().keys() == titles, lambda: f"{titles - shown().keys()}", patience=60)
        found = shown()
        assert found["Share held of the last batch"] == [0.25]
        assert found["Rows in quarantine"] == [5]
        assert found["Orphaned bytes on S3"] == [12]
        assert found["Attempts without a delivery"] == [1]
        assert found["Runs that did not end well, in an hour"] == [1], "also the first that ended so"
        for expression in alerts_documented():
            seen.ask(expression)


def alerts_documented() -> list[str]:
    """Return the expressions that the page names for Prometheus' own alerts."""
    page = (REPOSITORY / "docs/metrics.md").read_text()
    found = page.split("```text\n")[1].split("```")[0].splitlines()
    assert len(found) == 3
    return found
