"""Taps on phones, hour by hour and a little out of order, and pipelines that keep state over them.

The transforms are those of docs/cookbook; what must become of the taps is computed here in plain Python.
"""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.environment import REPOSITORY
from tests.support.home import Home
from tests.support.oracle import Row, Rows

NAME = "taps"
HOUR = 3600
START = 1_600_000_000 // HOUR * HOUR  # seconds since 1970
LATEST = HOUR + HOUR // 2  # seconds that a tap may come after a newer one: less than the watermark waits
ACTIONS = ("call", "open", "pay")
MOMENT = pa.timestamp("us", tz="UTC")

DECLARATION = """
import datetime
from etl.pipeline import Append, Files, Lookup, Pipeline, Replace, Upsert

def transform(df, **lookups):
    from pyspark.sql import functions as F
{body}

PIPELINE = Pipeline(
    name="{name}",
    sources=(Files("{name}/*.{ending}", max_files={max_files}),),
    schema="{schema}",
    transform=transform,
    sink={sink},
    {more}
    max_quarantine_share={share},
)
"""
SCHEMA = "phone string, at timestamp, action string"
HOURLY_COLUMNS = pa.schema(
    [("hour", MOMENT), ("action", pa.string()), ("taps", pa.int64()), ("latest", MOMENT)]
)
TAPS = pa.schema([("phone", pa.string()), ("at", MOMENT), ("action", pa.string())])
OPENINGS = pa.schema([("phone", pa.string()), ("at", MOMENT), ("paid_at", MOMENT)])
SILENCES = pa.schema([("phone", pa.string()), ("last", MOMENT)])
UPSERT = 'Upsert(keys=("hour", "action"), newest="latest")'


def recipe(page: str, number: int = 0) -> str:
    """Return the body of a transform that a page of the cookbook shows."""
    text = (REPOSITORY / "docs" / "cookbook" / f"{page}.md").read_text()
    code = text.split("```python\n")[1 + number].partition("```")[0]
    return code.partition("):\n")[2].partition("\n\nPIPELINE")[0]


HOURLY = recipe("windows")
SESSIONS = recipe("windows", 1)
SESSION_COLUMNS = pa.schema([("phone", pa.string()), ("began", MOMENT), ("taps", pa.int64())])
ROLLUP = recipe("aggregates")
ROLLUP_COLUMNS = pa.schema([("phone", pa.string()), ("action", pa.string()), ("taps", pa.int64())])

IN_PANDAS = """
    import datetime as dt
    import pandas as pd
    from pyspark.sql.streaming.state import GroupStateTimeout

    def silence(key, frames, state):
        if state.hasTimedOut:
            (last,) = state.get
            state.remove()
            yield pd.DataFrame({"phone": [key[0]], "last": [dt.datetime.fromtimestamp(last, dt.UTC)]})
        else:
            newest = max(int(frame["at"].max().timestamp()) for frame in frames)
            newest = max(newest, *state.getOption) if state.exists else newest
            state.update((newest,))
            state.setTimeoutTimestamp((newest + 7200) * 1000)

    return df.withWatermark("at", "2 hours").groupBy("phone").applyInPandasWithState(
        silence, "phone string, last timestamp", "seconds bigint", "append", GroupStateTimeout.EventTimeTimeout)
"""
FIRST_SEEN = """
    import datetime as dt
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class FirstSeen(StatefulProcessor):
        def init(self, handle):
            self.seen = handle.getValueState("seen", "yes boolean", 3_600_000)

        def handleInputRows(self, key, rows, timerValues):
            if not self.seen.exists():
                yield Row(phone=key[0], last=min(row.at for row in rows))
            self.seen.update((True,))

    columns = "phone string, last timestamp"
    return df.groupBy("phone").transformWithState(FirstSeen(), columns, "append", "ProcessingTime")
"""
BY_THE_CLOCK = """
    import datetime as dt
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Told(StatefulProcessor):
        def init(self, handle):
            self.handle = handle
            self.last = handle.getValueState("last", "seconds bigint")

        def handleInputRows(self, key, rows, timerValues):
            newest = max(int(row.at.replace(tzinfo=dt.UTC).timestamp()) for row in rows)
            self.last.update((max(newest, self.last.get()[0]) if self.last.exists() else newest,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
            return iter(())

        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            yield Row(phone=key[0], last=dt.datetime.fromtimestamp(self.last.get()[0], dt.UTC))

    columns = "phone string, last timestamp"
    return df.groupBy("phone").transformWithState(Told(), columns, "append", "ProcessingTime")
"""


@dataclass(frozen=True, order=True)
class Tap:
    at: int  # seconds since 1970
    phone: str
    action: str

    @property
    def time(self) -> str:
        return dt.datetime.fromtimestamp(self.at, dt.UTC).isoformat()

    @property
    def json(self) -> str:
        return json.dumps({"phone": self.phone, "at": self.time, "action": self.action})


def taps(hours: int, a_file: int, *, seed: int) -> list[list[Tap]]:
    """Distinct taps in files: no file has one that is older than the newest before it by more than LATEST."""
    drawn = random.Random(seed)
    made = {
        Tap(
            at=START + drawn.randrange(hours * HOUR),
            phone=f"+45{drawn.randrange(40)}",
            action=drawn.choice(ACTIONS),
        )
        for _ in range(a_file * hours)
    }
    arrival = sorted(made, key=lambda tap: (tap.at + drawn.randrange(LATEST), tap))
    size = len(arrival) // hours
    return [arrival[size * n : size * (n + 1)] for n in range(hours - 1)] + [arrival[size * (hours - 1) :]]


def falling_silent(files: Sequence[Sequence[Tap]], *, after: int) -> list[list[Tap]]:
    """`after` so many files, a quarter of the phones does nothing any more."""
    return [
        [tap for tap in made if int(tap.phone[3:]) % 4 or number < after] for number, made in enumerate(files)
    ]


def hourly(made: Iterable[Tap], *, until: int | None = None, every: int = HOUR) -> Rows:
    """Taps by hour and action, in the table's columns; `until`: of the hours that are over by then.

    One hour begins `every` so many seconds.
    """
    by_hour: dict[tuple[int, str], list[int]] = {}
    for tap in made:
        for back in range(0, HOUR, every):
            by_hour.setdefault((tap.at // every * every - back, tap.action), []).append(tap.at)
    rows: list[Row] = [
        (hour * 1_000_000, action, len(times), max(times) * 1_000_000)
        for (hour, action), times in by_hour.items()
        if until is None or hour + HOUR <= until
    ]
    return Counter(rows)


def rows(made: Iterable[Tap]) -> Rows:
    """Return each tap as a row of its own columns."""
    return Counter((tap.phone, tap.at * 1_000_000, tap.action) for tap in made)


def paid(made: Sequence[Tap]) -> Rows:
    """Return the openings that have a payment."""
    return Counter({row: count for row, count in openings(made).items() if row[2] is not None})


def openings(made: Sequence[Tap]) -> Rows:
    """Return each opening of the app with each payment of the hour after it, or with none."""
    pairs: Rows = Counter()
    for tap in made:
        if tap.action == "open":
            after = (one for one in made if (one.action, one.phone) == ("pay", tap.phone))
            paid = [one.at * 1_000_000 for one in after if tap.at <= one.at < tap.at + HOUR]
            pairs.update((tap.phone, tap.at * 1_000_000, at) for at in paid or [None])
    return pairs


def sessions_over(files: Sequence[Sequence[Tap]]) -> Rows:
    """Return each phone's sessions, without a gap of half an hour, that the watermark has passed."""
    over, gap = max(tap.at for tap in flat(files)) - 2 * HOUR, HOUR // 2
    return Counter(
        (phone, session[0] * 1_000_000, len(session))
        for phone, session in _sessions(flat(files), gap)
        if session[-1] + gap <= over
    )


def _sessions(made: Iterable[Tap], gap: int) -> Iterator[tuple[str, list[int]]]:
    by_phone: dict[str, list[int]] = {}
    for tap in sorted(made):
        by_phone.setdefault(tap.phone, []).append(tap.at)
    for phone, times in by_phone.items():
        session = times[:1]
        for at in times[1:]:
            if at > session[-1] + gap:  # as Spark 4.3 has it: one that comes just at the end still belongs
                yield phone, session
                session = []
            session.append(at)
        yield phone, session


def rolled_up(made: Iterable[Tap]) -> Rows:
    """Taps by phone and action, by phone, and of all."""
    counted: Counter[tuple[str, str]] = Counter()
    for tap in made:
        counted.update([(tap.phone, tap.action), (tap.phone, "all"), ("all", "all")])
    return Counter((*key, count) for key, count in counted.items())


def silences(batches: Sequence[Sequence[Tap]]) -> tuple[Rows, dict[str, int]]:
    """Return the phones told as silent, batch by batch, and what is known of each phone afterwards."""
    told: Rows = Counter()
    last: dict[str, int] = {}
    newest = 0
    for made in batches:
        watermark = newest - 2 * HOUR
        for tap in made:
            last[tap.phone] = max(tap.at, last.get(tap.phone, 0))
        for phone in [phone for phone, at in last.items() if at + 2 * HOUR <= watermark]:
            told[phone, last.pop(phone) * 1_000_000] += 1
        newest = max(newest, *(tap.at for tap in made)) if made else newest
    return told, last


def first_seen(files: Iterable[Sequence[Tap]]) -> Rows:
    """Return the first tap of each phone in the first file that has one."""
    told: dict[str, int] = {}
    for made in files:
        for tap in sorted(made):
            told.setdefault(tap.phone, tap.at * 1_000_000)
    return Counter(told.items())


def told_a_file_later(files: Sequence[Sequence[Tap]]) -> Rows:
    """Return each phone of a file with its last tap by the end of the next file: their timers are due in that batch."""
    told: Rows = Counter()
    last: dict[str, int] = {}
    for before, made in itertools.pairwise([[], *files]):
        for tap in made:
            last[tap.phone] = max(tap.at, last.get(tap.phone, 0))
        told.update((phone, last[phone] * 1_000_000) for phone in {tap.phone for tap in before})
    return told


def declare(
    home: Home,
    *,
    name: str = NAME,
    body: str = HOURLY,
    sink: str = UPSERT,
    columns: pa.Schema = HOURLY_COLUMNS,
    ending: str = "jsonl",
    schema: str = SCHEMA,
    **more: object,
) -> None:
    """`more` are further fields of the declaration; `max_files` and `max_quarantine_share` are 1 unless told."""
    max_files, share = more.pop("max_files", 1), more.pop("max_quarantine_share", 1.0)
    text = DECLARATION.format(
        name=name,
        body=body,
        sink=sink,
        ending=ending,
        schema=schema,
        max_files=max_files,
        share=share,
        more="".join(f"{field}={value!r},\n    " for field, value in more.items()),
    )
    home.columns = columns
    home.declare(name, text=text)


def land(home: Home, number: int, made: Sequence[Tap], *, name: str = NAME, ending: str = "jsonl") -> None:
    home.write(f"{name}/{number:03}.{ending}", written(made, ending))


def written(made: Sequence[Tap], ending: str) -> str | bytes:
    """Write a file of taps in a format of its own."""
    if ending == "parquet":
        columns = (
            [tap.phone for tap in made],
            [tap.at * 1_000_000 for tap in made],
            [tap.action for tap in made],
        )
        out = io.BytesIO()
        pq.write_table(pa.Table.from_arrays(list(map(pa.array, columns)), TAPS.names).cast(TAPS), out)
        return out.getvalue()
    lines = {
        "jsonl": [tap.json for tap in made],
        "csv": ["phone,at,action", *(f"{tap.phone},{tap.time},{tap.action}" for tap in made)],
        "log": [f"{tap.time} {tap.phone}: {tap.action}" for tap in made],
    }
    return "".join(f"{line}\n" for line in lines[ending])


def land_all(home: Home, files: Iterable[Sequence[Tap]], *, first: int = 0) -> None:
    for number, made in enumerate(files, start=first):
        land(home, number, made)


def flat(files: Iterable[Sequence[Tap]]) -> list[Tap]:
    return [tap for file in files for tap in file]


def in_force(home: Home, name: str = NAME) -> Rows:
    """Return the table, row by row."""
    return home.reader(name).in_postgres(system=())


def assert_clean(home: Home, name: str = NAME) -> None:
    assert home.assert_clean(name).rows["lake"] > 0


IN_TIME = taps(9, 40, seed=31)
LATE = {
    4: [Tap(at=START - HOUR, phone="+450", action="pay")],
    7: [Tap(at=START, phone="+451", action="open")] * 2,
}
FILES = [[*made, *LATE.get(number, [])] for number, made in enumerate(IN_TIME)]
