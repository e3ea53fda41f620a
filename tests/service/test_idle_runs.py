"""A run that finds nothing new still looks at what would keep the next file from being delivered, as far as that is free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from etl.common.errors import SetupError
from etl.common.settings import Settings
from etl.pipeline import load_pipeline
from etl.runs.run import run
from etl.runs.workspace import Workspace
from etl.services import Services
from etl.sinks.lake.lake import Lake
from tests.support.data.orders import DECLARATION

pytestmark = pytest.mark.long


@pytest.fixture
def place(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Workspace:
    """Return a place where `orders` is declared with a suite that is not there, and nothing has landed."""
    (tmp_path / "orders.py").write_text(DECLARATION.format(name="orders", max_files=1, share=1.0))
    landing = tmp_path / "landing"
    (landing / "orders").mkdir(parents=True)
    settings = Settings(
        home=tmp_path / "home", landing=str(landing), pipelines=(tmp_path,), suites=(tmp_path,)
    )
    return Workspace(settings=settings, services=replace(services, postgres=dsn, lake=lake.root))


def test_a_suite_that_is_gone_or_none_ends_a_run_also_where_nothing_has_landed(place: Workspace) -> None:
    orders = load_pipeline("orders", place.settings.pipelines)
    suite = place.settings.suites[0] / "orders.json"
    with pytest.raises(SetupError, match=r"Suite orders\.json of pipeline orders is in none of the folders"):
        run(place, orders)
    suite.write_text("{")
    with pytest.raises(SetupError, match=r"orders\.json can't be read as a suite"):
        run(place, orders)


@pytest.mark.parametrize("master", ["locl", "local[two]", "spark:/host:7077"])
def test_a_master_that_is_none_ends_a_run_also_where_nothing_has_landed(
    place: Workspace, master: str
) -> None:
    (place.settings.suites[0] / "orders.json").write_text('{"name": "orders", "expectations": []}')
    other = replace(place, settings=place.settings.model_copy(update={"spark_master": master}))
    with pytest.raises(SetupError, match="is no master of Spark: it names none of these") as refused:
        run(other, load_pipeline("orders", place.settings.pipelines))
    assert refused.value.seen.startswith(f"SLUICE_SPARK_MASTER={master} is")
