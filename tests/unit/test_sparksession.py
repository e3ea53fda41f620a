"""What of Spark's own settings is refused before anything starts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from etl.common.errors import SetupError
from etl.common.settings import Settings
from etl.services import Services
from etl.spark.session import SHUFFLES, configuration

NOWHERE = Services(postgres="", lake="s3://b", s3_endpoint=None, s3_region="r", environment={})


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("spark.submit.deployMode", "asks for cluster mode"),
        ("spark.hadoop.fs.s3a.secret.key", "show in `ps`: spark.hadoop.fs.s3a.secret.key$"),
    ],
)
def test_a_setting_that_breaks_a_promise_is_refused(tmp_path: Path, name: str, seen: str) -> None:
    settings = Settings(home=tmp_path, spark_conf={name: "cluster"})
    with pytest.raises(SetupError, match=f"(?m){seen}"):
        configuration(settings, NOWHERE)


@pytest.mark.parametrize(
    ("master", "parts"),
    [("local", "1"), ("local[3]", "3"), ("local[3,2]", "3"), ("local[*]", str(os.cpu_count()))],
)
def test_a_small_job_is_shuffled_into_as_many_parts_as_there_are_cores(
    settings: Settings, master: str, parts: str
) -> None:
    found = configuration(settings.model_copy(update={"spark_master": master}), NOWHERE)
    assert found[SHUFFLES] == parts


def test_tasks_elsewhere_find_the_landing_s_s3_as_the_driver_does(settings: Settings) -> None:
    away = settings.model_copy(update={"spark_master": "spark://master:7077"})
    found = configuration(away, replace(NOWHERE, s3_endpoint="http://s3:7070", s3_region="eu-north-1"))
    environment = {
        name.removeprefix("spark.executorEnv."): value
        for name, value in found.items()
        if name.startswith("spark.executorEnv.")
    }
    assert environment == {
        "AWS_ENDPOINT_URL_S3": "http://s3:7070",
        "AWS_REGION": "eu-north-1",
        "AWS_DEFAULT_REGION": "eu-north-1",
    }
