"""The shipped pipelines over generated records, by whole runs over two layouts of batches, against plain Python."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import pytest

from etl.operations.control.state import read_state
from etl.operations.datasets.generated import GeneratedFile, count_fates, generated
from etl.pipeline import Pipeline, load_pipeline
from etl.runs.run import run
from tests.support.home import Home
from tests.support.oracle import Row, Rows

DAYS = (dt.date(2026, 1, 1), dt.date(2026, 1, 2))
SEED = 7
HALF = 12  # hours: what comes a day late is landed with the last of three parts
PARTS = (slice(0, HALF), slice(HALF, 3 * HALF), slice(3 * HALF, 4 * HALF))
MINUTE, HOUR, DAY = 60, 3600, 86_400
WAITS = 3 * HOUR  # what the pipelines' watermarks wait
KNOWN = {"open", "call", "pay"}

LAYOUTS = pytest.mark.parametrize(
    "max_files",
    [
        pytest.param(100, id="few large batches"),
        pytest.param(6, id="many small batches", marks=pytest.mark.slow),
    ],
)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is in the files, by what they say alone."""

    dataset: str

    @cached_property
    def files(self) -> Sequence[GeneratedFile]:
        return generated(self.dataset, DAYS, seed=SEED)

    @cached_property
    def records(self) -> list[tuple[int, dict[str, object]]]:
        """(moment in seconds, record) of each that is whole and not a day late, in the order of their arrival."""
        return [(at, record) for _, at, came, record in self.parsed if at > came - HALF * HOUR]

    @cached_property
    def late(self) -> int:
        return sum(at <= came - HALF * HOUR for _, at, came, _ in self.parsed)

    @property
    def watermark(self) -> int:
        """Return the watermark that the last batch leaves."""
        return max(at for at, _ in self.records) - WAITS

    @cached_property
    def parsed(self) -> list[tuple[str, int, int, dict[str, object]]]:
        """(file, moment, hour of arrival, record) of each record that is whole."""
        found = []
        for file in self.files:
            _, day, name = file.path.split("/")
            came = seconds(f"{day.removeprefix('dt=')}T{name.removesuffix('.jsonl')}:00:00Z")
            for line in file.content.decode().splitlines():
                if line.endswith("}"):
                    record = json.loads(line)
                    found.append((file.path, seconds(record["at"]), came, record))
        return found


def seconds(iso: str) -> int:
    return int(dt.datetime.fromisoformat(iso).timestamp())


DEVICES, ACTIONS = Expected(dataset="devices"), Expected(dataset="actions")


def declared(shipped: Home, name: str) -> Pipeline:
    return load_pipeline(name, shipped.place.settings.pipelines)


def run_over(shipped: Home, given: Pipeline, files: Sequence[GeneratedFile], max_files: int) -> None:
    """Land in three parts, run after each, and look that both sinks agree."""
    sources = tuple(replace(files, max_files=max_files) for files in given.sources)
    pipeline = replace(given, sources=sources)
    for part in PARTS:
        for file in files[part]:
            shipped.write(file.path, file.content)
        run(shipped.place, pipeline, spark=shipped.spark)
    shipped.assert_clean(pipeline.name)


def deliver(shipped: Home, name: str, given: Expected, max_files: int) -> None:
    """Run over what is given, and look that what was late is held."""
    run_over(shipped, declared(shipped, name), given.files, max_files)
    known = count_fates(given.files)
    reasons = held(shipped)
    assert (reasons["late"], reasons["malformed"]) == (known["late"], known["malformed"])
    assert known["late"] == given.late > 0


def held(shipped: Home) -> Counter[str]:
    return Counter(dict(shipped.ask("SELECT unnest(reasons), count(*) FROM sluice.quarantine GROUP BY 1")))


def table(shipped: Home, name: str, columns: str) -> Rows:
    return Counter(shipped.ask(f"SELECT {columns} FROM warehouse.{name}"))


def moment(column: str) -> str:
    return f"extract(epoch FROM {column})::bigint"


@pytest.mark.slow
@LAYOUTS
def test_device_events(shipped: Home, max_files: int) -> None:
    deliver(shipped, "device_events", DEVICES, max_files)
    good = {(one["device"], one["reading"]) for _, one in DEVICES.records if one["temperature"] != 999.9}
    assert table(shipped, "device_events", "device, reading") == Counter(good)
    known = count_fates(DEVICES.files)
    unwanted = sum(known[fate] for fate in ("double", "late", "malformed", "implausible"))
    assert len(good) == known["records"] - unwanted
    assert held(shipped)["the temperature is what the sensor measures"] == known["implausible"]


@pytest.mark.slow
@LAYOUTS
def test_device_alerts(shipped: Home, max_files: int) -> None:
    deliver(shipped, "device_alerts", DEVICES, max_files)
    by_device: dict[str, set[int]] = {}
    for at, record in DEVICES.records:
        by_device.setdefault(str(record["device"]), set()).add(at)
    wanted: Rows = Counter(
        (device, alert, at)
        for device, times in by_device.items()
        for alert, at in alerts(sorted(times), DEVICES.watermark)
    )
    assert table(shipped, "device_alerts", f"device, alert, {moment('at')}") == wanted
    assert {alert for _, alert, _ in wanted} == {"offline", "recovered", "flapping"}
    alerting = declared(shipped, "device_alerts")
    stores = {one.store: one for one in read_state(shipped.place, alerting, most=2, spark=shipped.spark)}
    assert stores.keys() == {"waiting", "last", "pauses"}, "a map, a value and a list"
    assert stores["last"].keys == len(by_device)
    assert all(one.keys and one.rows for one in stores.values())


def alerts(times: Sequence[int], over: int) -> Iterator[tuple[str, int]]:
    """Return the alerts of a device's readings, once the watermark is `over`."""
    pauses: list[int] = []
    passed = [at for at in times if at <= over]
    for at, following in zip(passed, [*passed[1:], None], strict=True):
        offline = at + 30 * MINUTE
        if offline <= (over if following is None else following):
            yield "offline", offline
            pauses = [one for one in pauses if one > offline - 6 * HOUR] + [offline]
            if len(pauses) == 3:
                yield "flapping", offline
                pauses = []
            if following is not None:
                yield "recovered", following


@LAYOUTS
def test_actions_per_hour(shipped: Home, max_files: int) -> None:
    deliver(shipped, "actions_per_hour", ACTIONS, max_files)
    hours = Counter((at // HOUR * HOUR, one["action"]) for at, one in ACTIONS.records)
    wanted: Rows = Counter(
        (hour, action, count) for (hour, action), count in hours.items() if action in KNOWN
    )
    assert table(shipped, "actions_per_hour", f"{moment('hour')}, action, actions") == wanted
    assert held(shipped)["the action is a known one"] > 0


@pytest.mark.slow
@LAYOUTS
def test_actions_sliding(shipped: Home, max_files: int) -> None:
    deliver(shipped, "actions_sliding", ACTIONS, max_files)
    windows: Counter[Row] = Counter()
    for at, one in ACTIONS.records:
        newest = at // (15 * MINUTE) * 15 * MINUTE
        windows.update((newest - n * 15 * MINUTE, one["action"]) for n in range(4))
    wanted: Rows = Counter(
        (begins, action, count)
        for (begins, action), count in windows.items()
        if action in KNOWN and begins + HOUR <= ACTIONS.watermark
    )
    assert table(shipped, "actions_sliding", f"{moment('begins')}, action, actions") == wanted
    ends = f"SELECT DISTINCT {moment('ends')} - {moment('begins')} FROM warehouse.actions_sliding"
    assert shipped.ask(ends) == [(HOUR,)]


@pytest.mark.slow
@LAYOUTS
def test_phone_sessions(shipped: Home, max_files: int) -> None:
    deliver(shipped, "phone_sessions", ACTIONS, max_files)
    by_phone: dict[str, list[tuple[int, object]]] = {}
    for at, one in sorted(ACTIONS.records, key=lambda both: both[0]):
        by_phone.setdefault(str(one["phone"]), []).append((at, one["action"]))
    wanted: Rows = Counter()
    for phone, done in by_phone.items():
        session = done[:1]
        for at, action in [*done[1:], (ACTIONS.watermark + DAY, "")]:
            if at > session[-1][0] + 30 * MINUTE:
                payments = sum(one == "pay" for _, one in session)
                if session[-1][0] + 30 * MINUTE <= ACTIONS.watermark:
                    wanted[phone, session[0][0], session[-1][0], len(session), payments] += 1
                session = []
            session.append((at, action))
    columns = f"phone, {moment('began')}, {moment('last')}, actions, payments"
    assert table(shipped, "phone_sessions", columns) == wanted
    assert len(wanted) > 100


@pytest.mark.slow
@LAYOUTS
def test_unpaid_openings(shipped: Home, max_files: int) -> None:
    deliver(shipped, "unpaid_openings", ACTIONS, max_files)
    opened, paid = (
        {(str(one["phone"]), at) for at, one in ACTIONS.records if one["action"] == action}
        for action in ("open", "pay")
    )
    wanted: Rows = Counter(
        (phone, at)
        for phone, at in opened
        if at + HOUR <= ACTIONS.watermark
        and not any(other == phone and at < when <= at + HOUR for other, when in paid)
    )
    assert table(shipped, "unpaid_openings", f"phone, {moment('opened')}") == wanted
    assert 100 < len(wanted) < len(opened) - 100


@pytest.mark.slow
@LAYOUTS
def test_conversions(shipped: Home, max_files: int) -> None:
    deliver(shipped, "conversions", ACTIONS, max_files)
    opened, paid = (
        [(one["phone"], at) for at, one in ACTIONS.records if one["action"] == action]
        for action in ("open", "pay")
    )
    wanted: Rows = Counter(
        (phone, at, when, when - at)
        for phone, at in opened
        for other, when in paid
        if other == phone and at < when <= at + HOUR
    )
    columns = f"phone, {moment('opened')}, {moment('paid')}, seconds"
    assert table(shipped, "conversions", columns) == wanted
    assert len(wanted) > 100


def test_conversions_at_their_bounds(shipped: Home) -> None:
    """A payment of the same second is none, one of the last second is, and what is sent twice is two."""
    sent = [("A", "10:00:00", "open")] * 2 + [("B", "10:00:01", "pay")]
    sent += [("A", at, "pay") for at in ("09:59:59", "10:00:00", "10:00:01", "11:00:00", "11:00:01")]
    phones = {"A": "+4520000001", "B": "+4520000002"}
    lines = (
        json.dumps({"phone": phones[phone], "at": f"2026-01-01T{at}Z", "action": action})
        for phone, at, action in sent
    )
    shipped.write("actions/bounds.jsonl", "".join(f"{line}\n" for line in lines))
    run(shipped.place, declared(shipped, "conversions"), spark=shipped.spark)
    wanted = {(phones["A"], 1): 2, (phones["A"], 3600): 2}
    assert table(shipped, "conversions", "phone, seconds") == wanted


@pytest.mark.slow
@LAYOUTS
def test_features_used(shipped: Home, max_files: int) -> None:
    """What comes a day late counts as well; what is not known yet is kept and held."""
    used = declared(shipped, "features_used")
    run_over(shipped, used, ACTIONS.files, max_files)
    pairs = {(record["phone"], record["action"]) for *_, record in ACTIONS.parsed}
    good = {pair for pair in pairs if pair[1] in KNOWN}
    assert table(shipped, "features_used", "phone, action") == Counter(good)
    malformed = count_fates(ACTIONS.files)["malformed"]
    assert held(shipped) == {"the action is a known one": len(pairs - good), "malformed": malformed}
    [store] = read_state(shipped.place, used, most=2, spark=shipped.spark)
    assert store.keys == len(pairs) > len(good), "one entry for each"


@pytest.mark.slow
@LAYOUTS
def test_actions_by_day(shipped: Home, max_files: int) -> None:
    run_over(shipped, declared(shipped, "actions_by_day"), ACTIONS.files, max_files)
    groups: dict[tuple[object, str], list[int]] = {}
    for _, at, _, record in ACTIONS.parsed:
        day = str(dt.datetime.fromtimestamp(at, dt.UTC).date())
        for group in product((record["action"], "all"), (day, "all")):
            groups.setdefault(group, []).append(at)
    wanted: Rows = Counter((*group, len(times), min(times), max(times)) for group, times in groups.items())
    columns = f"action, day, actions, {moment('earliest')}, {moment('latest')}"
    assert table(shipped, "actions_by_day", columns) == wanted
    known = count_fates(ACTIONS.files)
    assert len(groups["all", "all"]) == known["records"] - known["malformed"]
    assert held(shipped) == {"malformed": known["malformed"]}, "an unknown action is told of and delivered"


@pytest.mark.slow
def test_an_action_of_no_day_is_no_total(shipped: Home) -> None:
    shipped.write("actions/timed.jsonl", ACTIONS.files[12].content)
    shipped.write("actions/timeless.jsonl", '{"phone": "nobody", "action": "call"}\n')
    summary = run(shipped.place, declared(shipped, "actions_by_day"), spark=shipped.spark)
    assert summary.reasons["the day is given"] == 2, "one sum of its action and one of all"
    totals = dict(shipped.ask("SELECT day, actions FROM warehouse.actions_by_day WHERE action = 'all'"))
    assert totals.pop("all") == sum(totals.values()) + 1


@pytest.mark.slow
@LAYOUTS
def test_phone_presence(shipped: Home, max_files: int) -> None:
    """In a run of a minute nobody is away for thirty days."""
    run_over(shipped, declared(shipped, "phone_presence"), ACTIONS.files, max_files)
    shipped.write("actions/timeless.jsonl", '{"phone": "nobody", "action": "call"}\n')
    lenient = replace(declared(shipped, "phone_presence"), max_quarantine_share=1.0)
    summary = run(shipped.place, lenient, spark=shipped.spark)
    assert summary.reasons == {"late": 1}, "what has no time comes to no processor"
    phones = {str(record["phone"]) for *_, record in ACTIONS.parsed}
    assert table(shipped, "phone_presence", "phone, event") == Counter((phone, "came") for phone in phones)


@pytest.mark.slow
def test_phone_presence_where_a_month_is_over(shipped: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the next file it is told who went, and of those in it that they came again."""
    presence = declared(shipped, "phone_presence")
    monkeypatch.setitem(presence.transform.__globals__, "AWAY", dt.timedelta(milliseconds=1))
    run_over(shipped, presence, ACTIONS.files, 100)
    wanted: Rows = Counter()
    before: set[str] = set()
    for part in PARTS:
        paths = {file.path for file in ACTIONS.files[part]}
        phones = {str(record["phone"]) for path, _, _, record in ACTIONS.parsed if path in paths}
        wanted += Counter((phone, "came") for phone in phones) + Counter((phone, "went") for phone in before)
        before = phones
    assert table(shipped, "phone_presence", "phone, event") == wanted


@LAYOUTS
def test_requests(shipped: Home, max_files: int) -> None:
    files = generated("requests", DAYS, seed=SEED)
    run_over(shipped, declared(shipped, "requests"), files, max_files)
    wanted: Rows = Counter()
    broken = []
    for line in (line for file in files for line in file.content.decode().splitlines()):
        words = line.split(" ")
        if len(words) < 10:
            broken.append(line)
        elif words[8] != "999":
            at = dt.datetime.strptime(" ".join(words[3:5]), "[%d/%b/%Y:%H:%M:%S %z]")
            name, size = (None if word == "-" else word for word in (words[2], words[9]))
            wanted[
                int(at.timestamp()), words[0], name, words[6], int(words[8]), int(size) if size else None
            ] += 1
    assert table(shipped, "requests", f"{moment('at')}, address, name, path, status, bytes") == wanted
    known = count_fates(files)
    assert held(shipped) == {
        "the line is in the log's format": known["malformed"],
        "the status is one of HTTP": known["implausible"],
    }
    kept = shipped.ask(
        "SELECT row::json ->> 'unreadable' FROM sluice.quarantine WHERE row::json ->> 'unreadable' <> ''"
    )
    assert sorted(line for (line,) in kept) == sorted(broken)
