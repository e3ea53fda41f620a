"""A retired pipeline leaves the pages with who and why, and comes back with its next run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from etl.airflow.pages import pages
from etl.airflow.pages.records import reading
from etl.airflow.pages.render import Frame
from etl.common.database import transaction
from etl.common.errors import Busy, SetupError
from etl.delivery import correction
from etl.ledger import leases
from etl.operations.control.retire import retire, retired, undeclared
from etl.pipeline import Append
from etl.runs.heartbeat import make_known
from etl.services import Services
from etl.sinks.lake.lake import Lake
from tests.support.delivering import DECLARATION, Delivering
from tests.support.pages.drawn import shown

ROWS = pa.table({"id": pa.array(range(3), pa.int64())})
WHY = "the shop is closed <b>"


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    (tmp_path / "pipelines").mkdir()
    return tmp_path / "pipelines" / "events.py"


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path, declared: Path) -> Delivering:
    folders = (declared.parent,)
    found = Delivering.start(services, dsn, lake, tmp_path / "home", ROWS.schema, Append(), pipelines=folders)
    found.deliver(ROWS)
    return found


def end(events: Delivering) -> None:
    """End the run, as one that has nothing more to deliver."""
    events.execute("UPDATE sluice.run SET ended_at = now(), outcome = 'done'")
    events.execute("UPDATE sluice.pipeline SET lease_token = NULL")


def overview(events: Delivering, *, retired: bool = False) -> str:
    with reading(events.dsn) as cursor:
        return pages.overview(cursor, lambda names: names, Frame(), retired=retired).html


def test_a_retired_pipeline_leaves_the_pages_until_it_runs_again(events: Delivering) -> None:
    end(events)
    assert 'href="events/"' in overview(events)
    retire(events.place, "events", who="Ada", why=WHY)
    assert retired(events.dsn) == ["events"]
    of_view = "SELECT retired_at IS NOT NULL FROM sluice.quality_pipeline"
    assert events.execute(of_view) == [(True,)]
    assert 'href="events/"' not in overview(events)
    assert '<a href="?retired=true">1 retired</a>' in overview(events)
    gone = overview(events, retired=True)
    assert 'href="events/"' in gone
    assert "by <b>Ada</b>: the shop is closed &lt;b&gt;" in gone
    with reading(events.dsn) as cursor:
        page = shown(pages.pipeline(cursor, "events", Frame()))
    assert "by Ada : the shop is closed" in page
    assert "sluice run" not in page + gone
    assert events.execute("SELECT count(*) FROM {t}") == [(3,)]
    events.restart()
    assert retired(events.dsn) == []
    assert events.execute(of_view) == [(False,)]
    assert events.execute("SELECT retired_at, retired_by, retired_why FROM sluice.pipeline") == [(None,) * 3]
    assert 'href="events/"' in overview(events)
    assert "retired" not in overview(events)


@pytest.mark.parametrize("begins", ["a run", "a replay"])
def test_a_pipeline_that_is_retired_while_something_of_it_begins_is_not_retired_any_more(
    events: Delivering, begins: str
) -> None:
    end(events)
    with transaction(events.dsn) as cursor:
        make_known(cursor, events.pipeline)
        retire(events.place, "events", who="Ada", why=WHY)
        assert retired(events.dsn) == ["events"]
        if begins == "a run":
            leases.take_lease(cursor, "events")
        else:
            correction.begin(cursor, "events", "replay", who="Bob", why=None)
    assert retired(events.dsn) == []


def test_a_pipeline_that_runs_is_not_retired(events: Delivering) -> None:
    with pytest.raises(Busy, match="can't be retired now: It runs on"):
        retire(events.place, "events", who="Ada", why=WHY)
    assert retired(events.dsn) == []


@pytest.mark.parametrize("text", [DECLARATION, "this is no Python"])
def test_a_pipeline_that_is_declared_is_not_retired_though_its_file_is_broken(
    events: Delivering, declared: Path, text: str
) -> None:
    end(events)
    declared.write_text(text)
    with pytest.raises(SetupError, match=f"still declared, by {declared}"):
        retire(events.place, "events", who="Ada", why=WHY)
    assert retired(events.dsn) == []


def test_a_pipeline_that_is_declared_no_more_is_named_until_it_is_retired(
    events: Delivering, declared: Path
) -> None:
    end(events)
    assert undeclared(events.place, []) == ["events"]
    assert undeclared(events.place, ["events"]) == []
    declared.write_text("PIPELINE = broken")
    assert undeclared(events.place, []) == []
    declared.unlink()
    retire(events.place, "events", who="Ada", why=WHY)
    assert undeclared(events.place, []) == []


def test_what_never_ran_is_retired_already_or_has_no_reason_is_refused(events: Delivering) -> None:
    end(events)
    with pytest.raises(SetupError, match="No pipeline event has ever run; did you mean events"):
        retire(events.place, "event", who="Ada", why=WHY)
    with pytest.raises(SetupError, match="needs a reason"):
        retire(events.place, "events", who="Ada", why=" ")
    retire(events.place, "events", who="Ada", why=WHY)
    with pytest.raises(SetupError, match="is retired since 20"):
        retire(events.place, "events", who="Bob", why="again")
    assert events.execute("SELECT retired_by FROM sluice.pipeline") == [("Ada",)]
