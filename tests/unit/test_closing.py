"""Folders that are closed by the interval in their names."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from etl.pipeline.intervals import PathTemplate
from etl.sources.listing.closing import Closing
from etl.sources.listing.files import local_files
from etl.sources.listing.folder_states import PatternLook

UNTIL = dt.datetime(2024, 3, 2, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("template", "closed", "opened"),
    [
        ("dt={interval:%Y-%m-%d}", ["a/dt=2024-03-01", "dt=2023-12-31/b"], ["a", "dt=2024-03-02", "xdt=2024-03-01"]),
        ("{interval:%Y/%m/%d}", ["2024/03/01", "2024/02", "a/2023/12/x"], ["2023", "2024/03", "2024/03/02", "2024/02-x"]),
        ("y={interval:%Y/m=%m}", ["y=2023", "y=2024/m=02"], ["y=2024", "y=2024/m=03", "2023"]),
        ("{interval:%Y-%m/%d}", ["2024-02", "2024-03/01"], ["2024-03", "2024-03/02"]),
        ("{interval:%d/%m/%Y}", ["01/03/2024"], ["01", "01/03", "02/03/2024"]),
        ("{interval:%Y/%d/%m}", ["2024/01/03"], ["2023", "2023/01"]),
        ("{interval:%Y%m%dT%H}", ["20240301T23"], ["20240302T00"]),
    ],
)  # fmt: skip
def test_a_folder_is_closed_by_the_interval_that_its_path_names_or_begins_with(
    template: str, closed: list[str], opened: list[str]
) -> None:
    closing = Closing(template=PathTemplate(text=template), until=UNTIL)
    assert [one for one in closed if not closing.has(one)] == []
    assert [one for one in opened if closing.has(one)] == []


def test_what_is_in_no_closed_folder_is_listed_whatever_its_name_says(tmp_path: Path) -> None:
    """Close no folder by the name of a file in it, and none of a time that is yet to come."""
    for path in ("2024/02/29/a", "2024/02/b", "2024/03/02/c", "9999/12/31/d", "e-2023/02/02", "2023/x/f"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{path}.csv").touch()
    look = PatternLook(
        known={}, closing=Closing(template=PathTemplate(text="{interval:%Y/%m/%d}"), until=UNTIL)
    )
    found = sorted(local_files("**/*.csv", str(tmp_path), look))
    assert found == ["2023/x/f.csv", "2024/03/02/c.csv", "9999/12/31/d.csv", "e-2023/02/02.csv"]
    assert look.found["2024/02"] is None  # it is looked at again, should it be open then
