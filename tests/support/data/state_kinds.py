"""A transform for every kind of state that Spark keeps, each with what must become of the same taps in plain Python."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from etl.pipeline import Lookup
from tests.support.data import taps
from tests.support.data.taps import HOUR, START, Tap, flat
from tests.support.home import Home
from tests.support.oracle import Rows

HOURS = 7
_BY_HOUR = taps.falling_silent(taps.taps(HOURS, 40, seed=22), after=2)
FILES = tuple(flat(_BY_HOUR[first : first + 2]) for first in range(0, HOURS, 2))
Made = Sequence[Sequence[Tap]]  # file by file


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A transform that keeps state, and what it makes of files of taps."""

    body: str
    columns: pa.Schema
    wanted: Callable[[Made], Rows]
    sink: str = "Append()"
    files: Made = FILES
    ending: str = "jsonl"
    more: Mapping[str, Any] = field(default_factory=dict)  # fields of its declaration

    def land(self, home: Home, name: str) -> None:
        """Write the pipeline's declaration and land its files, one per batch."""
        taps.declare(
            home,
            name=name,
            body=self.body,
            sink=self.sink,
            columns=self.columns,
            ending=self.ending,
            **self.more,
        )
        for number, made in enumerate(self.files):
            taps.land(home, number, made, name=name, ending=self.ending)


LISTS = """
    import datetime as dt
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Times(StatefulProcessor):
        def init(self, handle):
            self.times = handle.getListState("times", "seconds bigint")

        def handleInputRows(self, key, rows, timerValues):
            for row in rows:
                self.times.appendValue((int(row.at.replace(tzinfo=dt.UTC).timestamp()),))
            times = [at for (at,) in self.times.get()]
            yield Row(phone=key[0], began=dt.datetime.fromtimestamp(min(times), dt.UTC), taps=len(times))

    columns = "phone string, began timestamp, taps bigint"
    return df.groupBy("phone").transformWithState(Times(), columns, "append", "None")
"""
MAPS = """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Actions(StatefulProcessor):
        def init(self, handle):
            self.counts = handle.getMapState("counts", "action string", "taps bigint")

        def handleInputRows(self, key, rows, timerValues):
            for row in rows:
                (before,) = self.counts.getValue((row.action,)) or (0,)
                self.counts.updateValue((row.action,), (before + 1,))
            for (action,), (taps,) in self.counts.iterator():
                yield Row(phone=key[0], action=action, taps=taps)

    columns = "phone string, action string, taps bigint"
    return df.groupBy("phone").transformWithState(Actions(), columns, "append", "None")
"""
OF_LINES = """
    found = [F.regexp_extract("line", r"^(\\S+) (\\S+): (\\S+)$", number) for number in (1, 2, 3)]
    df = df.select(found[0].cast("timestamp").alias("at"), found[1].alias("phone"), found[2].alias("action"))
"""
OF_OWNERS = """
    df = df.join(lookups["owners"], "phone", "left").withColumn("action", F.coalesce("who", "action"))
"""
OWNERS = {f"+45{number}": f"owner {number % 3}" for number in range(0, 40, 2)}


def hours_over(files: Made) -> Rows:
    """Return each hour that the watermark has passed."""
    return taps.hourly(flat(files), until=max(tap.at for tap in flat(files)) - 2 * HOUR)


def cubed(made: Sequence[Tap]) -> Rows:
    """Taps by phone and action, by either, and of all."""
    actions = Counter(tap.action for tap in made)
    return taps.rolled_up(made) + Counter(("all", action, count) for action, count in actions.items())


def times_so_far(files: Made) -> Rows:
    """Return for each phone of a file its first tap and its number of taps, by the end of that file."""
    told: Rows = Counter()
    known: dict[str, list[int]] = {}
    for made in files:
        for tap in made:
            known.setdefault(tap.phone, []).append(tap.at)
        told.update(
            (phone, min(known[phone]) * 1_000_000, len(known[phone])) for phone in {tap.phone for tap in made}
        )
    return told


def actions_so_far(files: Made) -> Rows:
    """Return for each phone of a file its taps by action, by the end of that file."""
    told: Rows = Counter()
    known: Counter[tuple[str, str]] = Counter()
    for made in files:
        known.update((tap.phone, tap.action) for tap in made)
        phones = {tap.phone for tap in made}
        told.update((*key, count) for key, count in known.items() if key[0] in phones)
    return told


def payments(made: Sequence[Tap]) -> Rows:
    """Return each payment with each opening of the hour before it, or with none."""
    pairs: Rows = Counter()
    for tap in made:
        if tap.action == "pay":
            before = (one for one in made if (one.action, one.phone) == ("open", tap.phone))
            opened = [one.at for one in before if one.at <= tap.at < one.at + HOUR]
            pairs.update((tap.phone, at * 1_000_000, tap.at * 1_000_000) for at in opened)
            if not opened:
                pairs[None, None, tap.at * 1_000_000] += 1
    return pairs


def owned(made: Sequence[Tap]) -> list[Tap]:
    return [replace(tap, action=OWNERS.get(tap.phone, tap.action)) for tap in made]


CLOSING = [
    Tap(at=START + 2 * HOURS * HOUR, phone=f"+459{n}", action=action)
    for n, action in enumerate(("open", "pay"))
]
CLOSED = [*FILES, CLOSING]  # the watermark passes all before, and an outer join has told all of it


KEPT = {
    "doubles": Kept(
        body=taps.recipe("doubles"),
        columns=taps.TAPS,
        files=[made + made[:5] + before[-5:] for before, made in itertools.pairwise([[], *FILES])],
        wanted=lambda files: taps.rows(set(flat(files))),
    ),
    "doubles_forever": Kept(
        body='    return df.dropDuplicates(["phone", "at", "action"])',
        columns=taps.TAPS,
        files=[FILES[0], *(made + FILES[0][:5] for made in FILES[1:])],
        wanted=lambda files: taps.rows(set(flat(files))),
    ),
    "inner_join": Kept(
        body=taps.recipe("joins").replace("leftOuter", "inner"),
        columns=taps.OPENINGS,
        wanted=lambda files: taps.paid(flat(files)),
    ),
    "left_outer_join": Kept(
        body=taps.recipe("joins"),
        columns=taps.OPENINGS,
        files=CLOSED,
        wanted=lambda files: taps.openings(flat(files[:-1])),
    ),
    "right_outer_join": Kept(
        body=taps.recipe("joins").replace("leftOuter", "rightOuter"),
        columns=taps.OPENINGS,
        files=CLOSED,
        wanted=lambda files: payments(flat(files[:-1])),
    ),
    "timers": Kept(
        body=taps.recipe("timers"),
        columns=taps.SILENCES,
        wanted=lambda files: taps.silences([*files, []])[0],
    ),
    "timers_by_the_clock": Kept(body=taps.BY_THE_CLOCK, columns=taps.SILENCES, wanted=taps.told_a_file_later),
    "timeouts": Kept(
        body=taps.IN_PANDAS,
        columns=taps.SILENCES,
        wanted=lambda files: taps.silences([*files, []])[0],
    ),
    "times_to_live": Kept(body=taps.FIRST_SEEN, columns=taps.SILENCES, wanted=taps.first_seen),
    "lists": Kept(body=LISTS, columns=taps.SESSION_COLUMNS, wanted=times_so_far),
    "maps": Kept(body=MAPS, columns=taps.ROLLUP_COLUMNS, wanted=actions_so_far),
    "hours": Kept(body=taps.HOURLY, columns=taps.HOURLY_COLUMNS, wanted=hours_over),
    "sliding_hours": Kept(
        body=taps.HOURLY.replace('"1 hour"', '"1 hour", "15 minutes"'),
        columns=taps.HOURLY_COLUMNS,
        sink=taps.UPSERT,
        wanted=lambda files: taps.hourly(flat(files), every=HOUR // 4),
    ),
    "sessions": Kept(body=taps.SESSIONS, columns=taps.SESSION_COLUMNS, wanted=taps.sessions_over),
    "rollup": Kept(
        body=taps.ROLLUP,
        columns=taps.ROLLUP_COLUMNS,
        sink="Replace()",
        wanted=lambda files: taps.rolled_up(flat(files)),
    ),
    "cube": Kept(
        body=taps.ROLLUP.replace("rollup", "cube"),
        columns=taps.ROLLUP_COLUMNS,
        sink="Replace()",
        wanted=lambda files: cubed(flat(files)),
    ),
    "lines_of_text": Kept(
        body=OF_LINES + taps.HOURLY,
        columns=taps.HOURLY_COLUMNS,
        ending="log",
        more={"schema": "line string"},
        wanted=hours_over,
    ),
    "csv": Kept(body=taps.HOURLY, columns=taps.HOURLY_COLUMNS, ending="csv", wanted=hours_over),
    "parquet": Kept(body=taps.HOURLY, columns=taps.HOURLY_COLUMNS, ending="parquet", wanted=hours_over),
    "lookup": Kept(
        body=OF_OWNERS + taps.HOURLY,
        columns=taps.HOURLY_COLUMNS,
        more={
            "lookups": {
                "owners": Lookup("reference/owners.csv", schema="phone string, who string", key=("phone",))
            }
        },
        wanted=lambda files: hours_over([owned(made) for made in files]),
    ),
}


def land_kinds(home: Home, kinds: Iterable[str]) -> None:
    """Land the input of these kinds in one place, a pipeline each."""
    home.write(
        "reference/owners.csv", "phone,who\n" + "".join(f"{one},{who}\n" for one, who in OWNERS.items())
    )
    for name in kinds:
        KEPT[name].land(home, name)
