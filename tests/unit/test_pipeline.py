"""A declaration is right when it loads, and all that is wrong with one is told at once."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etl.common.errors import SetupError
from etl.pipeline import (
    Airflow,
    Append,
    Files,
    Kafka,
    Lookup,
    Model,
    Pipeline,
    Rate,
    Socket,
    Stream,
    Upsert,
    day,
    load_pipeline,
    load_pipelines,
    loadable,
)
from etl.pipeline.checks import SHIPPED_DAGS, problems
from etl.pipeline.ddl import ddl_columns, ddl_mistake, ddl_place


def same(df: object, **lookups: object) -> object:
    return df


def declared(**fields: object) -> Pipeline:
    whole: dict[str, object] = {
        "name": "events",
        "sources": (Files("events/**/*.jsonl"),),
        "schema": "id bigint, at timestamp",
        "transform": same,
        "sink": Append(),
    }
    return Pipeline(**{**whole, **fields})  # type: ignore[arg-type]


def test_a_right_declaration_has_no_problem() -> None:
    sink = Upsert(keys=("id",), newest="at", partition_by=day("at"), table="mart.events")
    lookups = {"places": Lookup("reference/places.csv", schema="id int, name string", key=("id",))}
    assert problems(declared(sink=sink, lookups=lookups, schedule="*/5 * * * 1-5", interval="at")) == []
    assert problems(declared(interval="dt={interval:%Y-%m-%d}", metrics=("id",), retries=0)) == []
    open_for = (Files("events/**/*.jsonl", open_for=dt.timedelta(days=3)),)
    assert problems(declared(sources=open_for, interval="dt={interval:%Y-%m-%d}")) == []
    assert problems(declared(output_mode="complete", late="at")) == []
    assert len(problems(declared(interval="dt={interval}", metrics="id"))) == 2
    assert problems(declared(metrics=("id", "at", "id"))) == ["metrics: 'id' is there twice"]


def test_every_mistake_is_reported_with_its_field() -> None:
    wrong = declared(
        name="Events",
        sources=(
            Files("events/*.xml"),
            Files("a/**/b/*.json", max_files=3, max_bytes=4),
            Files("x/*.json", max_files=0, open_for=dt.timedelta(hours=1)),
            Files("y/*.json", open_for=dt.timedelta(hours=-1)),
        ),
        schema="id bigint, _Malformed string, _batch_id bigint, ID int",
        sink=Upsert(keys=(), newest="_at", table="sluice.events"),
        lookups={"places": Lookup("p.csv", schema="id int", key=("place",))},
        schedule="daily",
        suite="../x",
        interval="_t",
        start="2013",
        max_quarantine_share=1.5,
        max_fewer_share=-0.1,
        metrics=("_id",),
        output_mode="upsert",
        unreadable="skip",
        late=5,
        not_after={"at": dt.timedelta(days=-1), "": "at", "seen": 5},
        retries=-1,
        retry_delay=60,
    )
    text = "\n".join(problems(wrong))
    for field in (
        "name:", "sources[0].format:", "sources[1]: 'a/**/b/*.json'",
        "sources[1]: max_files and max_bytes",
        "sources[2].max_files:", "sources[2].open_for:", "sources[3].open_for:",
        "schema: column '_Malformed'", "schema: column 'id' is there twice",
        "sink.keys:", "sink.newest:", "sink.table:", "lookups['places'].key:", "schedule:", "suite:", "interval:", "start:",
        "max_quarantine_share:", "max_fewer_share:", "metrics:", "output_mode:", "unreadable:", "late:", "retries:",
        "retry_delay:", "not_after['at']: datetime.timedelta(days=-1)", "not_after: ''", "not_after['seen']: 5",
    ):  # fmt: skip
        assert field in text


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        ("0 25 * * *", "out of range"),
        ("0 0 * * MON#6", "day_of_week"),
        ("a b c d e", "not acceptable"),
        ("0 0 30 2 *", "is never due"),
        ("R * * * *", "random"),
        ("0 0 * * * *", "neither five cron fields"),
        ("@reboot", "neither five cron fields"),
        (5, "neither five cron fields"),
    ],
)
def test_a_schedule_that_airflow_could_not_keep_is_refused(schedule: object, told: str) -> None:
    [found] = problems(declared(schedule=schedule))
    assert found.startswith(f"schedule: {schedule!r}")
    assert told in found


@pytest.mark.parametrize(
    "schedule", ["@annually", "0 0 29 2 *", "0 0 * * MON#5", "0 0 L * *", "5 4 * jan-mar fri"]
)
def test_a_schedule_that_comes_due_is_taken(schedule: str) -> None:
    assert problems(declared(schedule=schedule)) == []


def test_what_only_airflow_can_make_is_a_function_that_is_not_called() -> None:
    def never() -> None:
        raise AssertionError

    options = Airflow(queue="large", pool="shared", pool_slots=2, executor_config=never)
    assert problems(declared(schedule=never, airflow=options)) == []
    assert problems(declared(schedule="0 3 * * *", airflow=Airflow(time_zone="Europe/Berlin"))) == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"time_zone": "Berlin"}, "time_zone"),
        ({"time_zone": "../etc"}, "time_zone"),
        ({"time_zone": None}, "time_zone"),
        ({"queue": ""}, "queue"),
        ({"executor": 5}, "executor"),
        ({"pool": " "}, "pool"),
        ({"pool": "shared", "pool_slots": 0}, "pool_slots"),
        ({"pool_slots": 2}, "pool_slots"),
        ({"priority_weight": 1.5}, "priority_weight"),
        ({"execution_timeout": 60}, "execution_timeout"),
        ({"execution_timeout": dt.timedelta()}, "execution_timeout"),
        ({"deciders": tuple(f"decider {number:04}" for number in range(240))}, "deciders"),
        ({"executor_config": "pod"}, "executor_config"),
        ({"access_control": ["ops"]}, "access_control"),
        ({"replays_access_control": "ops"}, "replays_access_control"),
    ],
)
def test_an_option_of_airflows_that_could_not_be_kept_is_refused(options: dict[str, Any], field: str) -> None:
    [found] = problems(declared(schedule="@daily", airflow=Airflow(**options)))
    assert found.startswith(f"airflow.{field}: ")


def test_options_of_airflows_that_fit_no_such_pipeline_are_refused() -> None:
    for changed, field in (
        ({"airflow": {"queue": "large"}}, "airflow: {"),
        ({"airflow": Airflow(time_zone="Europe/Berlin")}, "airflow.time_zone: "),
        (
            {"airflow": Airflow(execution_timeout=dt.timedelta(hours=1)), "follow": True},
            "airflow.execution_timeout: ",
        ),
    ):
        [found] = problems(declared(**changed))
        assert found.startswith(field)


def test_the_names_of_shipped_dags_are_no_pipelines() -> None:
    for name in SHIPPED_DAGS:
        [found] = problems(declared(name=name))
        assert found.startswith(f"name: {name!r}")


def test_the_name_of_a_dag_for_replays_is_no_pipelines() -> None:
    [found] = problems(declared(name="orders_replays"))
    assert found.startswith(
        "name: 'orders_replays' ends as the DAG for the replays of a pipeline 'orders' would"
    )
    assert problems(declared(name="replays_of_orders")) == []


def test_a_pipeline_is_followed_or_has_a_schedule() -> None:
    second = dt.timedelta(seconds=1)
    assert problems(declared(follow=True, every=second, interval="at")) == []
    both = problems(declared(follow=True, schedule="@daily", deadline=second))
    assert [one.partition(":")[0] for one in both] == ["schedule", "deadline"]
    for wrong in (10, dt.timedelta(), second / 2, dt.timedelta(days=1, seconds=1)):
        [found] = problems(declared(every=wrong))
        assert found.startswith("every: ")
    assert problems(declared(follow="yes"))[0].startswith("follow: 'yes'")


@pytest.mark.parametrize("transform", [max, dict])
def test_a_transform_that_does_not_tell_its_arguments_is_refused(transform: Callable[..., Any]) -> None:
    [found] = problems(declared(transform=transform))
    assert found.startswith("transform: ")


def test_lookups_and_the_transforms_arguments_must_agree() -> None:
    def joined(df: object, *, planes: object) -> object:
        return df

    lookup = Lookup("p.csv", schema="id int", key=("id",))
    assert problems(declared(transform=joined, lookups={"planes": lookup})) == []
    found = problems(declared(transform=joined, lookups={"plains": lookup}))
    assert any("'planes' is no lookup" in one for one in found)
    assert any("takes no argument 'plains'" in one for one in found)


def test_streams_of_other_schemas_are_taken_by_name() -> None:
    def joined(df: object, *, weather: object) -> object:
        return df

    sources = (Files("events/*.jsonl"), Files("weather/*.csv", stream="weather"))
    weather = Stream(schema="at timestamp, temp double", late="at")
    assert problems(declared(transform=joined, sources=sources, streams={"weather": weather})) == []

    lookup = Lookup("p.csv", schema="id int", key=("id",))
    wrong: dict[str, object] = {
        "sources": (Files("weather/*.csv", stream="weather"), Files("rain/*.csv", stream="rain")),
        "streams": {
            "weather": Stream(schema="_raw string", late="", not_after={"at": "at"}),
            "no name": "none",
            "p": weather,
        },
        "lookups": {"p": lookup},
    }
    text = "\n".join(problems(declared(**wrong)))
    for told in (
        "sources[1].stream: 'rain' is none of streams", "sources: none is of the pipeline's own schema",
        "streams['weather'].schema: column '_raw'", "streams['weather'].late: ''",
        "streams['weather'].not_after['at']: 'at' must be",
        "streams['no name']: the name must be a Python name", "streams['no name']: must be a Stream",
        "streams['p']: no source is of it", "streams['p']: a lookup is called so too",
    ):  # fmt: skip
        assert told in text


def test_the_column_of_files_paths_is_one_of_its_own_in_all_sources_of_a_stream() -> None:
    def joined(df: object, *, weather: object) -> object:
        return df

    weather = {"weather": Stream(schema="File string")}
    of_weather = Files("weather/*.csv", stream="weather")
    sources = (Files("a/*.jsonl", path="file"), Files("b/*.csv", path="file"), of_weather)
    assert problems(declared(transform=joined, sources=sources, streams=weather)) == []
    sources = (
        Files("a/*.jsonl", path="AT"),
        Files("b/*.csv", path="_Source_path"),
        Files("c/*.csv", path=""),
        replace(of_weather, path="file"),
    )
    another = ", and 'AT' of another source of its stream; give all the same"
    assert problems(declared(transform=joined, sources=sources, streams=weather)) == [
        "sources[0].path: 'AT' is a column of the schema; take another name",
        "sources[1].path: '_Source_path' is called like a column of Sluice's own; take another name",
        "sources[1].path: '_Source_path'" + another,
        "sources[2].path: '' must be the name of a column",
        "sources[2].path: ''" + another,
        "sources[3].path: 'file' is a column of the schema; take another name",
    ]
    [found] = problems(declared(sources=(Files("a/*.jsonl", path="file"), Files("b/*.csv"))))
    assert found == "sources[1].path: None, and 'file' of another source of its stream; give all the same"


def test_models_are_taken_by_name_and_checked() -> None:
    def scored(df: object, *, odd: object) -> object:
        return df

    right = Model("readings", features=("a", "b"), label="c")
    assert problems(declared(transform=scored, models={"odd": right})) == []
    lookup = Lookup("p.csv", schema="id int", key=("id",))
    wrong = Model("No name", features=("a", "a"), flagged=1.0, label="_c", rows=7, trees=0, seed=True)
    models = {"odd": wrong, "p": right, "no name": "none"}
    text = "\n".join(problems(declared(lookups={"p": lookup}, models=models)))
    for told in (
        "models['odd'].trained_on: 'No name'", "models['odd'].features: ('a', 'a') names a column twice",
        "models['odd'].flagged: 1.0", "models['odd'].label: '_c'", "models['odd'].rows: 7 must be",
        "models['odd'].trees: 0 must be", "models['odd'].seed: True must be",
        "models['p']: a lookup is called so too", "models['no name']: the name must be a Python name",
        "models['no name']: must be a Model",
    ):  # fmt: skip
        assert told in text
    assert problems(declared(models=7)) == ["models: must be a mapping of name to Model(…)"]
    assert "takes no argument 'other'" in problems(declared(transform=scored, models={"other": right}))[-1]


def test_options_that_skip_records_are_refused() -> None:
    found = problems(declared(sources=(Files("a/*.csv", options={"mode": "DROPMALFORMED", "sep": ";"}),)))
    assert len(found) == 1 and "mode not among" in found[0]


def test_an_encoding_is_for_csv_alone() -> None:
    latin = {"encoding": "ISO-8859-1"}
    assert problems(declared(sources=(Files("a/*.csv", options=latin), Files("b/*.x", format="csv")))) == []
    for encoding in ("UTF-7", "cp1252", "latin1"):
        [found] = problems(declared(sources=(Files("a/*.csv", options={"encoding": encoding}),)))
        assert found.startswith(f"sources[0].options: encoding {encoding!r} not among utf-8, utf-16, ")
    for file in ("a/*.jsonl", "a/*.log", "a/*.parquet"):
        [found] = problems(declared(sources=(Files(file, options=latin),)))
        assert found.startswith("sources[0].options: encoding: all but csv")
        assert found.endswith("convert the files before they land")
    places = Lookup("p.jsonl", schema="id int", key=("id",), options=latin)
    [found] = problems(declared(lookups={"places": places}, transform=lambda df, *, places: df))
    assert found.startswith("lookups['places'].options: encoding: all but csv")
    german = {"locale": "de", "dateFormat": "dd.MM.yyyy"}
    for source in (Files("a/*.jsonl", options=german), Kafka(("a",), options=german)):
        found = problems(declared(sources=(source,)))
        assert [one.split(":")[1] for one in found] == [" dateFormat", " locale"], found
        assert all("docs/reading.md" in one for one in found)
    [found] = problems(declared(sources=(Files("a/*.json", options=7),)))  # type: ignore[arg-type]
    assert found.startswith("sources[0].options: must be a mapping")


def test_column_names_are_found_in_nested_ddl() -> None:
    schema = "a decimal(10, 2), `b c` string COMMENT 'x, y', d struct<e:int, f:array<int>>, g:int"
    assert ddl_columns(schema) == ["a", "b c", "d", "g"]


@pytest.mark.parametrize(
    ("schema", "said", "told", "line"),
    [
        (
            "id bigint,\n at tmstmp",
            'Unsupported data type "TMSTMP". SQLSTATE: 0A000 (line 2, pos 4)',
            "Unsupported data type \"TMSTMP\", behind 'id bigint, at' (character 16)",
            3,
        ),
        (
            "1 int",
            "Syntax error at or near '1'. SQLSTATE: 42601 (line 1, pos 0)",
            "Syntax error at or near '1', at its beginning (character 1)",
            2,
        ),
        (
            "id decimal(50,2)",
            "Decimal precision 50 exceeds max precision 38. SQLSTATE: 22003",
            "Decimal precision 50 exceeds max precision 38",
            2,
        ),
    ],
)
def test_a_mistake_in_a_schema_is_told_with_its_file_its_line_and_what_stands_before(
    tmp_path: Path, schema: str, said: str, told: str, line: int
) -> None:
    file = tmp_path / "orders.py"
    file.write_text(f'A = 1\nSCHEMA = """{schema}"""\n')
    said = f"\n{said}\n\n== SQL ==\n{schema}\n"
    assert ddl_mistake(ValueError(said), schema) == told
    assert ddl_place(said, schema, file) == f"{file}, line {line}: "
    file.write_text(f"A = 1\nSCHEMA = {schema!r}\n")
    assert ddl_place(said, schema, file) == f"{file}, line 2: "
    file.write_text('SCHEMA = ", ".join(["id bigint"])\n')
    assert ddl_place(said, schema, file) == f"{file}: "
    assert ddl_place(said, schema, None) == ""


def test_topics_are_checked_by_field() -> None:
    good = (Kafka(("orders", "orders-eu"), max_offsets=10), Kafka(("refunds",), stream="refunds"))
    refunds = {"refunds": Stream(schema="id bigint")}

    def both(df: object, *, refunds: object) -> object:
        return df

    assert problems(declared(sources=good, streams=refunds, transform=both)) == []
    bad = (
        Kafka(()),
        Kafka(("a b", "orders"), format="avro", max_offsets=0),
        Kafka(("orders",), options={"sep": ";"}),
    )
    found = problems(declared(sources=bad, interval="dt={interval:%Y}"))
    for part in (
        "sources[0]: () must be a tuple of topics", "sources[1]: 'a b' is no name of a topic",
        "sources[1].format: 'avro'", "sources[1].max_offsets: 0", "sources[2]: topic 'orders' is there twice",
        "sources[2].options: sep where the format takes none", "interval:",
    ):  # fmt: skip
        assert any(part in sentence for sentence in found), (part, found)


@pytest.mark.parametrize("source", [Files("orders/*.jsonl"), Kafka(("orders",))])
def test_a_field_may_begin_with_an_underscore_but_not_be_one_that_each_record_has(
    source: Files | Kafka,
) -> None:
    assert (
        problems(declared(sources=(source,), schema="_id string, __v int, _source string", late="__v")) == []
    )
    [found] = problems(declared(sources=(source,), schema="id string, `_METADATA` string"))
    assert found.startswith("schema: column '_METADATA' is called like one that is added to each record")
    of_topics = problems(declared(sources=(source,), schema="_offset bigint, _key string"))
    assert len(of_topics) == (2 if isinstance(source, Kafka) else 0)


def test_files_and_topics_are_not_mixed() -> None:
    found = problems(declared(sources=(Files("a/*.jsonl"), Kafka(("orders",)))))
    assert found == ["sources: must be all Files(…) or all Kafka(…); declare a pipeline for each kind"]


def test_a_rate_and_a_socket_are_checked_by_field() -> None:
    rate = {"sources": (Rate(rows_per_second=5),), "schema": "value BIGINT,  timestamp timestamp"}
    [other] = problems(declared(**rate))
    assert other.startswith("schema: 'value BIGINT,") and "'timestamp timestamp, value bigint'" in other
    assert problems(declared(**rate | {"schema": "timestamp  TIMESTAMP,value bigint", "follow": True})) == []
    assert (
        problems(
            declared(sources=(Socket(host="localhost", port=9999, options={"decimal": ","}, format="csv"),))
        )
        == []
    )
    two = (Socket(host="a b", port=0, format="parquet"), Socket(host="b", port=1))
    streams = {"more": Stream(schema="id bigint")}
    found = problems(declared(sources=two, schedule="@daily", interval="at", late="at", streams=streams))
    for part in (
        "sources: a pipeline takes one Socket(…)", "sources[0].host: 'a b'", "sources[0].port: 0",
        "sources[0].format: 'parquet' must be one of json, csv, text", "schedule: a pipeline of Socket(…) has none",
        "interval: a pipeline", "late: a pipeline", "streams: a pipeline",
    ):  # fmt: skip
        assert any(part in sentence for sentence in found), (part, found)
    lines = Socket(host="::1", port=1, format="csv", options={"sep": ";", "encoding": "UTF-16"})
    [refused] = problems(declared(sources=(lines,)))
    assert refused.startswith("sources[0].options: encoding: all but csv")


def test_the_recipes_of_rate_and_socket_load(tmp_path: Path) -> None:
    recipes = Path(__file__).resolve().parents[2] / "docs" / "cookbook" / "live.md"
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", recipes.read_text(), re.DOTALL)):
        (tmp_path / f"recipe{number}.py").write_text(block)
    found = load_pipelines([tmp_path])
    assert {name: one.replayable for name, one in found.items()} == {"ticks": False, "readings": False}


@pytest.mark.parametrize(
    "field",
    [
        'sink=Upsert(keys=(["id"],), newest="at")',
        "sources=(Kafka((['a'],)),)",
        "sources=(Files('a/*.csv', stream=['x']),)",
        "sources=(Files('a/*.csv', path=['x']),)",
        "sources=(Socket('localhost', 9, format=['json']),)",
        "lookups={'l': Lookup('l.csv', schema='id bigint', key=(['id'],))}",
    ],
)
def test_a_value_of_any_kind_is_told_and_takes_no_other_pipeline_along(tmp_path: Path, field: str) -> None:
    text = (
        "from etl.pipeline import *\nPIPELINE = Pipeline(**({{'name': {name!r}, 'sources': (Files('a/*.csv'),),"
        " 'schema': 'id bigint', 'transform': lambda df: df, 'sink': Append()}} | dict({field})))\n"
    )
    (tmp_path / "odd.py").write_text(text.format(name="odd", field=field))
    (tmp_path / "right.py").write_text(text.format(name="right", field=""))
    assert {*loadable([tmp_path])} == {"right"}
    with pytest.raises(SetupError, match=r"odd\.py: "):
        load_pipeline("odd", [tmp_path])
