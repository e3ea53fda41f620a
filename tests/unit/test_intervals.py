"""A file's interval by its path."""

from __future__ import annotations

import datetime as dt

import pytest

from etl.pipeline.intervals import PathTemplate


def at(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("template", "path", "interval"),
    [
        ("dt={interval:%Y-%m-%d}", "flights/dt=2013-03-31/a.jsonl", (at(2013, 3, 31), at(2013, 4, 1))),
        ("{interval:%Y%m}", "in/201312/a.csv", (at(2013, 12, 1), at(2014, 1, 1))),
        ("y={interval:%Y}", "y=2013/x", (at(2013, 1, 1), at(2014, 1, 1))),
        ("{interval:%Y/%m/%d/%H}", "a/2013/01/02/23/f", (at(2013, 1, 2, 23), at(2013, 1, 3))),
        ("orders-{interval:%Y%m%dT%H%M}.", "x/orders-20130102T0304.jsonl", (at(2013, 1, 2, 3, 4), at(2013, 1, 2, 3, 5))),
        ("{interval:%Y-%j}", "2012-366/f", (at(2012, 12, 31), at(2013, 1, 1))),
        ("year={interval:%Y/month=%m}", "year=2023/month=1/f", (at(2023, 1, 1), at(2023, 2, 1))),
        ("{interval:%Y/%m/%d/%H}", "in/2023/1/9/7/f", (at(2023, 1, 9, 7), at(2023, 1, 9, 8))),
        ("{interval:%d.%m.%Y %H.%M}.", "1.2.2023 3.4.csv", (at(2023, 2, 1, 3, 4), at(2023, 2, 1, 3, 5))),
        ("{interval:%Y-%j}", "2023-32/f", (at(2023, 2, 1), at(2023, 2, 2))),
        ("{interval:%Y-%m%d}", "2023-0102/f", (at(2023, 1, 2), at(2023, 1, 3))),
        ("{interval:%Y-%m%d}", "2023-112/f", None),
        ("v1{interval:%m-%Y}", "v12-2023/f", None),
        ("{interval:%Y-%m}0", "2023-10/f", None),
        ("month={interval:%m/%Y}", "month=001/2023/f", None),
        ("year={interval:%Y/month=%m}", "year=23/month=1/f", None),
        ("year={interval:%Y/month=%m}", "year=2023/month=0/f", None),
        ("dt={interval:%Y-%m-%d}", "flights/dt=2013-02-31/a.jsonl", None),
        ("dt={interval:%Y-%m-%d}", "flights/xdt=2013-03-31/a.jsonl", None),
        ("dt={interval:%Y-%m-%d}", "flights/dt=2013-03-311/a.jsonl", None),
        ("dt={interval:%Y-%m-%d}", "flights/a.jsonl", None),
        ("dt={interval:%Y-%m-%d}", "dt=9999-12-31/a", (at(9999, 12, 31), dt.datetime.max.replace(tzinfo=dt.UTC))),
    ],
)  # fmt: skip
def test_a_path_names_its_interval(
    template: str, path: str, interval: tuple[dt.datetime, dt.datetime] | None
) -> None:
    assert PathTemplate(text=template).of(path) == interval


@pytest.mark.parametrize(
    "template",
    ["{", "{interval}", "dt={day:%Y}", "{interval:%Y}/{interval:%m}", "{interval:%m}", "{interval:%Y %b}"],
)
def test_a_template_that_names_no_time_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"must hold|must name"):
        PathTemplate(text=template)
