"""Landing and checkpoints as objects on S3: the same promises as for local files."""

from __future__ import annotations

import datetime as dt
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from pyspark.sql import SparkSession

from etl.common.errors import CheckpointLost, InputsChanged
from etl.common.settings import Settings
from etl.common.steps import Step
from etl.delivery.batch import Receipt
from etl.runs.follow import RunControl
from etl.runs.run import run
from etl.runs.summary import Progress
from etl.services import Services
from etl.sources.landing import folders_gone
from etl.sources.named_paths import FILES
from tests.support.asked import counted
from tests.support.data import taps
from tests.support.data.by_day import declare, land, load
from tests.support.data.orders import DECLARATION, NAME, Landed, orders
from tests.support.home import once_at
from tests.support.s3_home import S3Home

NAMES = ("dt=2020-01-01/a:b.jsonl", "b b ü%20+#?.csv", "c/d/e&'(\u00a0[1]{2}.jsonl", "f\u3000\n*\\.csv")
BY_DAY = "from datetime import timedelta\n" + DECLARATION.format(name=NAME, max_files=20, share=1.0).replace(
    "max_files=20", "max_files=20, open_for=timedelta(days=3)"
).replace('suite="orders",', 'suite="orders", interval="dt={interval:%Y-%m-%d}",')


@pytest.fixture
def home(
    tmp_path: Path,
    dsn: str,
    services: Services,
    lake_uri: str,
    settings_for: Callable[..., Settings],
    spark: SparkSession,
) -> Iterator[S3Home]:
    bucket = f"landing-{uuid.uuid4().hex[:12]}"
    places = {"landing": f"s3a://{bucket}/my landing/zone=1", "checkpoints": f"s3a://{bucket}/check points"}
    config = Config(s3={"addressing_style": "path"})
    boto3.Session().client("s3", endpoint_url=services.s3_endpoint, config=config).create_bucket(
        Bucket=bucket
    )
    return S3Home.at(tmp_path, dsn, services, lake_uri, settings_for, spark, **places)


def fail_after(batch: int) -> Progress:
    """Told of it, a run ends with an error: it is committed, and Spark has not marked it."""

    def fail(receipt: Receipt) -> None:
        if receipt.batch_id == batch:
            raise OSError("no space left for a log line")

    return fail


def checkpoint_of(home: S3Home, stream: str, name: str = NAME) -> str:
    return f"{home.place.settings.checkpoints}/{name}/{stream}"


def test_objects_that_landed_are_delivered_once_and_malformed_records_held(home: S3Home) -> None:
    landed = Landed()
    for number, name in enumerate(NAMES):
        start = number * 20
        landed += home.land(f"orders/{name}", orders(start, 12, negative=[start + 3]), [f"{{broken {number}"])
    first = home.run()
    assert (first.batches, first.malformed) == (1, 4)
    home.assert_holds(landed)

    later = home.land("orders/later.jsonl", orders(100, 9), ["["])
    later += home.land("orders/dt=2020-01-02/later.csv", orders(120, 9, negative=[121]))
    second = home.run()
    assert (second.batches, second.rows_in, second.stream) == (1, 19, first.stream)
    home.assert_holds(landed + later)

    checkpoint = checkpoint_of(home, first.stream)
    assert any("/offsets/1" in key for key in home.below(checkpoint))
    before = home.below(checkpoint), home.objects()
    assert home.run().batches == 0
    assert (home.below(checkpoint), home.objects()) == before
    home.assert_holds(landed + later)
    home.assert_clean()


def test_a_run_goes_on_from_a_checkpoint_on_s3_when_it_failed_after_its_commit(home: S3Home) -> None:
    home.declare(max_files=1)
    landed = Landed()
    for number in range(3):
        landed += home.land(f"orders/{number}.jsonl", orders(number * 10, 6))
    with pytest.raises(OSError, match="no space left"):
        home.run(progress=fail_after(1))
    assert home.run().batches == 1
    home.assert_holds(landed)
    home.assert_clean()


def test_an_object_overwritten_while_it_is_read_is_not_delivered(home: S3Home) -> None:
    home.land("orders/a.jsonl", orders(0, 6))
    new: list[Landed] = []

    def overwrite() -> None:
        """Overwrite the object with content of the same size, perhaps within the same second."""
        new.append(home.land("orders/a.jsonl", orders(1, 6)))

    with (
        once_at(Step.STAGED, overwrite),
        pytest.raises(InputsChanged, match=r"orders/a\.jsonl") as stop,
    ):
        home.run()
    assert "sluice recover orders" in stop.value.remedy
    home.assert_holds(Landed())
    home.recover()
    assert home.run().rows_in == 6
    home.assert_holds(new[0])
    home.assert_clean()


def test_an_object_overwritten_between_listing_and_its_batch_is_not_delivered(home: S3Home) -> None:
    home.declare(max_files=1)
    landed = {name: home.land(f"orders/{name}.jsonl", orders(n * 10, 6)) for n, name in enumerate("ab")}
    before = {name: home.time(f"orders/{name}.jsonl") for name in landed}
    done: list[str] = []

    def overwrite(receipt: Receipt) -> None:
        [(path,)] = home.ask("SELECT path FROM sluice.delivery_input")
        done.append(path.removeprefix("orders/").removesuffix(".jsonl"))
        [other] = landed.keys() - set(done)
        path = f"orders/{other}.jsonl"
        while home.time(path) == before[other]:  # Spark's listing knows nothing but whole seconds
            landed[other] = home.land(path, orders(50, 6))

    with pytest.raises(InputsChanged, match="was changed after it was listed"):
        home.run(progress=overwrite)
    home.assert_holds(landed[done[0]])
    home.recover()
    assert home.run().rows_in == 6
    home.assert_holds(landed["a"] + landed["b"])
    home.assert_clean()


def test_an_object_removed_before_its_batch_stops_the_run(home: S3Home) -> None:
    landed = home.land("orders/a.jsonl", orders(0, 6))

    def delete() -> None:
        home.client.delete_object(Bucket=home.bucket, Key=home.key("orders/a.jsonl"))

    with once_at(Step.STAGED, delete), pytest.raises(InputsChanged, match=r"orders/a\.jsonl is gone"):
        home.run()
    home.assert_holds(Landed())
    home.land("orders/a.jsonl", landed.orders)
    home.recover()
    home.run()
    home.assert_holds(landed)


def test_a_folder_on_s3_is_gone_with_its_last_object_and_its_bucket_is_an_outage(home: S3Home) -> None:
    landed = home.land("orders/a.jsonl", orders(0, 6))
    assert home.run().batches == 1
    home.client.delete_object(Bucket=home.bucket, Key=home.key("orders/a.jsonl"))
    assert home.run().outcome == "done"
    home.assert_holds(landed)
    declared, nowhere = home.pipeline(NAME), f"s3a://{home.bucket}-gone"
    assert folders_gone(declared, home.place.settings.landing, frozenset()) == {}
    assert set(folders_gone(declared, f"{nowhere}/landing", frozenset()).values()) == {nowhere}


def test_closed_folders_on_s3_are_listed_by_no_run_and_what_lands_there_is_named_by_the_audit(
    home: S3Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does Spark list any, or another one than those of many new files of one source; few it is told by name."""
    assert home.spark is not None
    home.declare(text=BY_DAY)
    today = dt.datetime.now(dt.UTC)
    days = [f"orders/dt={today - dt.timedelta(days=ago):%Y-%m-%d}" for ago in (0, 1, 9, 10, 11, 12, 13)]
    young, old = days[:2], days[2:]
    landed = Landed()
    for number, folder in enumerate(days):
        landed += home.land(f"{folder}/a.jsonl", orders(10 * number, 3))
    with counted(home.place.services) as (services, _, s3):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(services.s3_endpoint))
        hadoop = home.spark.sparkContext._jsc.hadoopConfiguration()
        hadoop.set(f"fs.s3a.bucket.{home.bucket}.endpoint", services.s3_endpoint)

        def listed() -> Counter[str]:
            """Return how often each folder of the landing was listed since, by whoever."""
            below = home.key("")
            prefixes = [prefix for bucket, prefix in s3.listed if bucket == home.bucket]
            s3.listed.clear()
            return Counter(one.removeprefix(below).strip("/") for one in prefixes if one.startswith(below))

        assert home.run().batches == 1
        assert listed()["orders"] > 0
        assert home.run().batches == 0
        assert listed() == dict.fromkeys(["orders", *young], 2)  # once for each of two sources
        landed += home.land(f"{young[0]}/b.jsonl", orders(100, 3))
        for number in range(FILES + 1):
            landed += home.land(f"{young[1]}/{number}.csv", orders(200 + 10 * number, 3))
        late = home.land(f"{old[2]}/late.jsonl", orders(400, 3))
        assert home.run().delivered == 3 * (FILES + 2)
        seen = listed()
        assert (seen[young[0]], seen[young[1]]) == (
            2,
            2 + 4,
        )  # twice Spark asks whether it is there, and lists it
        assert not {*old} & {*seen}
        home.assert_holds(landed)
        report = home.assert_clean()
        assert (report.undelivered, report.next) == (
            [f"{old[2]}/late.jsonl"],
            ["`sluice run orders --closed`"],
        )
        closed = run(home.place, home.pipeline(), spark=home.spark, control=RunControl(closed=True))
        assert closed.delivered == 3
        home.assert_holds(landed + late)


@pytest.mark.slow
def test_a_checkpoint_on_s3_that_is_gone_is_replaced_by_recover(home: S3Home) -> None:
    landed = Landed()
    for number, name in enumerate(NAMES):
        landed += home.land(f"orders/{name}", orders(number * 20, 9))
    lost = home.run().stream
    home.remove(checkpoint_of(home, lost))
    late = home.land("orders/late.csv", orders(100, 5))
    refused = home.sluice("run", "orders")
    assert refused.returncode == CheckpointLost.exit_code, refused.stderr
    assert "next: `sluice recover orders`" in refused.stderr
    home.assert_holds(landed)
    mended = home.sluice_here("recover", "orders")
    assert mended.returncode == 0, mended.stderr
    assert f"knows the {len(NAMES)} delivered files" in mended.stdout
    done = home.run()
    assert (done.rows_in, done.stream == lost) == (5, False)
    home.assert_holds(landed + late)
    assert home.run().batches == 0
    home.assert_clean()


@pytest.mark.slow
def test_state_is_kept_on_s3_and_made_anew_there(home: S3Home) -> None:
    files = taps.taps(4, 30, seed=31)
    taps.declare(home)
    taps.land_all(home, files[:3])
    with pytest.raises(OSError, match="no space left"):
        home.run(taps.NAME, progress=fail_after(1))
    lost = home.run(taps.NAME).stream
    assert taps.in_force(home) == taps.hourly(taps.flat(files[:3]))

    checkpoint = checkpoint_of(home, lost, taps.NAME)
    assert any("/state/0/" in key for key in home.below(checkpoint))
    home.remove(checkpoint)
    home.recover(taps.NAME)
    taps.land_all(home, files[3:], first=3)
    home.run(taps.NAME)
    assert taps.in_force(home) == taps.hourly(taps.flat(files))
    taps.assert_clean(home)


@pytest.mark.slow
def test_history_on_s3_is_left_out_and_loaded_by_its_replay(home: S3Home) -> None:
    declare(home)
    loaded, _, landed = (land(home, day, "a b%20ü+") for day in range(3))
    assert home.run().batches == 1
    home.assert_holds(landed)
    load(home, 0)
    home.assert_holds(landed + loaded)
    home.remove(checkpoint_of(home, home.ask("SELECT current_stream::text FROM sluice.pipeline")[0][0]))
    home.recover()
    assert home.run().batches == 0
    home.assert_holds(landed + loaded)
    home.assert_clean()
