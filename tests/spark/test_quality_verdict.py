"""What becomes of a batch: the severities, the share, and what is no verdict."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from etl.common.errors import SetupError, VerdictUnknown
from etl.quality.blame import require_evaluable
from etl.quality.compile import compile_suite
from etl.quality.gx_fallback import evaluate_by_gx
from etl.quality.judge import judge
from etl.quality.verdict import FLAGS_PER_WORD, Counts, Severity, Verdict
from tests.support.quality.pass_evaluator import counts_of

Rule = dict[str, Any]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    """Twenty rows; x is null once and 99 twice, id is doubled once."""
    rows = [(str(n % 19), None if n == 0 else 99.0 if n < 3 else float(n % 7)) for n in range(20)]
    return spark.createDataFrame(rows, "id string, x double")


def below(severity: str, *, mostly: float = 1.0, limit: float = 10, **entry: Any) -> Rule:
    kwargs = {"column": "x", "max_value": limit, "mostly": mostly}
    return {"type": "expect_column_values_to_be_between", "kwargs": kwargs, "severity": severity, **entry}


def suite(*rules: Rule) -> dict[str, Any]:
    return {"name": "tried", "expectations": list(rules)}


def verdict(frame: DataFrame, *rules: Rule, share: float = 0.5, malformed: int = 0) -> Verdict:
    compiled = compile_suite(suite(*rules), frame.schema, frame.sparkSession)
    counts = counts_of(compiled, frame, malformed=malformed)
    return judge(compiled, counts, evaluate_by_gx(compiled, frame), max_quarantine_share=share)


# one row per cell of the table of severities: (rule, rows held, expectation passes, batch stops)
@pytest.mark.parametrize(
    ("rule", "held", "success", "stops"),
    [
        (below("info", mostly=0.8), 0, True, False),
        (below("info"), 0, False, False),
        (below("warning", mostly=0.8), 2, True, False),
        (below("warning"), 2, False, False),
        (below("critical", mostly=0.8), 2, True, False),
        (below("critical"), 2, False, True),
    ],
)
def test_severity_decides_about_rows_and_batch(
    frame: DataFrame, rule: Rule, held: int, success: bool, stops: bool
) -> None:
    outcome = verdict(frame, rule)
    assert outcome.quarantined == held
    assert outcome.success is success
    assert bool(outcome.stops) is stops
    (result,) = outcome.results
    assert (result.element_count, result.unexpected_count, result.stops) == (20, 2, stops)


def test_a_rule_without_severity_is_critical(frame: DataFrame) -> None:
    rule = below("")
    del rule["severity"]
    outcome = verdict(frame, rule)
    assert outcome.results[0].severity is Severity.CRITICAL
    assert outcome.stops == ("expect_column_values_to_be_between(x) failed: 2 of 20 rows break it",)


@pytest.mark.parametrize(("severity", "stops"), [("info", 0), ("warning", 0), ("critical", 1)])
def test_a_rule_about_the_table_has_no_rows_to_hold(frame: DataFrame, severity: str, stops: int) -> None:
    rules = [
        {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "x", "max_value": 1}},
        {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 3}},
    ]
    for rule in rules:
        outcome = verdict(frame, {**rule, "severity": severity})
        assert (outcome.success, outcome.quarantined, len(outcome.stops)) == (False, 0, stops)
        assert outcome.results[0].element_count is None


def test_a_rule_about_distinct_values_stops_with_those_that_it_found(frame: DataFrame) -> None:
    kwargs = {"column": "id", "value_set": [*map(str, range(16)), "x"]}
    outcome = verdict(frame, {"type": "expect_column_distinct_values_to_equal_set", "kwargs": kwargs})
    [stop] = outcome.stops
    assert stop.endswith(
        "_equal_set(id) failed: 3 unexpected values ('16', '17', '18'), 1 missing value ('x')"
    )


def test_the_share_of_held_rows_stops_a_batch_only_when_it_is_passed(frame: DataFrame) -> None:
    assert verdict(frame, below("warning"), share=0.1).stops == ()
    (stop,) = verdict(frame, below("warning"), share=0.09).stops
    assert "2 of 20 records" in stop
    assert "9.00%" in stop


def test_malformed_records_count_in_the_share(frame: DataFrame) -> None:
    assert verdict(frame, below("info"), share=0.2, malformed=5).stops == ()
    outcome = verdict(frame, below("info"), share=0.2, malformed=6)
    assert outcome.quarantined == 6
    assert "6 of 26 records" in outcome.stops[0]


def test_an_empty_batch_passes(spark: SparkSession, frame: DataFrame) -> None:
    outcome = verdict(frame.limit(0), below("critical"), share=0.0)
    assert outcome.success
    assert outcome.stops == ()
    assert (outcome.results[0].element_count, outcome.results[0].unexpected_count) == (0, 0)


def test_an_empty_suite_delivers_everything(frame: DataFrame) -> None:
    outcome = verdict(frame)
    assert outcome.success
    assert outcome.results == ()
    assert outcome.quarantined == 0


def test_info_rows_are_sampled_and_not_held(frame: DataFrame) -> None:
    compiled = compile_suite(suite(below("info")), frame.schema, frame.sparkSession)
    (rule,) = compiled.stage_rules
    assert not rule.quarantines
    assert rule.columns == ("x",)
    assert counts_of(compiled, frame).samples == {0: [(99.0,), (99.0,)]}


def test_more_rules_than_bits_of_a_word_are_kept_apart(frame: DataFrame) -> None:
    rules = [below("info", limit=n / 10, meta={"name": f"below {n}"}) for n in range(FLAGS_PER_WORD + 7)]
    compiled = compile_suite(suite(*rules), frame.schema, frame.sparkSession)
    assert len(compiled.flags) == 2
    outcome = judge(compiled, counts_of(compiled, frame), max_quarantine_share=1.0)
    values = [row.x for row in frame.collect() if row.x is not None]
    assert [result.unexpected_count for result in outcome.results] == [
        sum(value > n / 10 for value in values) for n in range(len(rules))
    ]


def test_rules_that_share_a_condition_share_its_flag(frame: DataFrame) -> None:
    rules = [
        below(severity, mostly=mostly, meta={"name": severity})
        for severity, mostly in [("info", 1.0), ("warning", 0.5), ("critical", 0.1)]
    ]
    compiled = compile_suite(suite(*rules), frame.schema, frame.sparkSession)
    assert len({rule.broken for rule in compiled.stage_rules}) == 1


def test_where_a_rule_was_evaluated_is_said(frame: DataFrame) -> None:
    outcome = verdict(
        frame,
        below("info"),
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}, "severity": "critical"},
        {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 20}},
    )
    assert [result.where for result in outcome.results] == ["pass", "gx", "reader"]
    assert outcome.stops == ("expect_column_values_to_be_unique(id) failed: 2 of 20 rows break it",)


def test_a_condition_is_not_evaluated_outside_its_domain(spark: SparkSession) -> None:
    """Under ANSI rules the comparison with a number would fail the batch at the first text."""
    frame = spark.createDataFrame([("1",), ("text",), ("3",)], "t string")
    rule = {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {
            "column": "t",
            "value_set": [1, 2],
            "row_condition": "t rlike '^[0-9]+$'",
            "condition_parser": "spark",
        },
        "severity": "info",
    }
    (result,) = verdict(frame, rule).results
    assert (result.element_count, result.unexpected_count) == (2, 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rows": 21}, "21 rows"),
        ({"histograms": ()}, "0 words"),
        ({"aggregates": {}}, "expect_column_mean_to_be_between(x)"),
    ],
)
def test_counts_that_miss_something_are_no_verdict(
    frame: DataFrame, change: dict[str, Any], told: str
) -> None:
    mean = {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "x", "min_value": 0}}
    compiled = compile_suite(suite(below("info"), mean), frame.schema, frame.sparkSession)
    counts: Counts = replace(counts_of(compiled, frame), **change)
    with pytest.raises(VerdictUnknown) as no_verdict:
        judge(compiled, counts, max_quarantine_share=1.0)
    assert told in str(no_verdict.value)


def test_a_rule_left_open_is_no_verdict(frame: DataFrame) -> None:
    unique = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}, "severity": "info"}
    compiled = compile_suite(suite(unique), frame.schema, frame.sparkSession)
    with pytest.raises(VerdictUnknown, match="not evaluated on the staged rows"):
        judge(compiled, counts_of(compiled, frame), max_quarantine_share=1.0)


def test_what_gx_could_not_compute_is_no_verdict(frame: DataFrame) -> None:
    query = {
        "type": "unexpected_rows_expectation",
        "kwargs": {"unexpected_rows_query": "SELECT * FROM {batch} WHERE raise_error(id) IS NULL"},
    }
    compiled = compile_suite(suite(query), frame.schema, frame.sparkSession)
    with pytest.raises(VerdictUnknown, match=r"expectation 1 .unexpected_rows_expectation"):
        evaluate_by_gx(compiled, frame)


NO_JSON: Rule = {
    "type": "expect_column_values_to_match_json_schema",
    "kwargs": {"column": "t", "json_schema": {"type": "object"}},
}
NO_NUMBER: Rule = {
    "type": "expect_column_values_to_not_be_null",
    "kwargs": {"column": "n", "row_condition": "cast(t as int) > 0", "condition_parser": "spark"},
}

DEEP: Rule = {
    "type": "expect_column_values_to_match_regex",
    "kwargs": {"column": "long", "regex": r"^(\w+[ ,.]*)*$"},
}


@pytest.mark.parametrize(
    ("rule", "told"),
    [(NO_JSON, "JSONDecodeError"), (NO_NUMBER, "'no JSON' of the type"), (DEEP, "a group that repeats")],
)
def test_a_rule_that_fails_over_the_rows_is_named(spark: SparkSession, rule: Rule, told: str) -> None:
    frame = spark.createDataFrame([(2, "no JSON", "word, " * 5000)], "n int, t string, long string")
    good = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "t"}}
    mean = {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "n", "max_value": 9}}
    compiled = compile_suite(suite(good, mean, rule, good | {"meta": {"name": "last"}}), frame.schema, spark)
    with pytest.raises(
        VerdictUnknown, match=f"expectation 3 .{rule['type']}.* could not be evaluated"
    ) as stop:
        require_evaluable(compiled, frame)
    assert told in stop.value.seen


def test_what_no_rule_made_fail_names_none(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("1", "{}")], "n string, t string")
    compiled = compile_suite(suite(NO_JSON), frame.schema, spark)
    assert require_evaluable(compiled, frame) is None
    broken = frame.selectExpr("cast(t as int) as n", "'no JSON' as t")
    assert "CAST_INVALID_INPUT" in str(require_evaluable(compiled, broken))


def test_the_digest_is_of_the_content_and_not_of_its_layout(frame: DataFrame, tmp_path: Path) -> None:
    written = tmp_path / "tried.json"
    written.write_text(json.dumps(suite(below("info")), indent=7))
    digests = {
        compile_suite(source, frame.schema, frame.sparkSession).digest
        for source in (written, suite(below("info")), dict(reversed(suite(below("info")).items())))
    }
    assert len(digests) == 1
    assert compile_suite(suite(below("warning")), frame.schema, frame.sparkSession).digest not in digests


UNIQUE: Rule = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}}
MISTAKES: list[tuple[Rule, str]] = [
    ({"type": "expect_miracles", "kwargs": {}}, ": there is no such type"),
    ({"kwargs": {}}, "it has no type"),
    ({**below("info"), "severty": "info"}, "unknown keys 'severty'; did you mean severity?"),
    (below("fatal"), "Invalid severity 'fatal'"),
    ({"type": "expect_column_values_to_be_between", "kwargs": {"column": "x", "min_valu": 1}}, "min_valu"),
    (below("info", limit={"$PARAMETER": "limit"}), "it takes max_value from suite parameters"),  # type: ignore[arg-type]
    ({"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "y"}}, "no column y; it has id, x"),
    ({"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "X"}}, "no column X; it has id, x"),
    (
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "x", "min_value": 2, "max_value": 1},
        },
        "its min_value 2.0 is greater than its max_value 1.0",
    ),
    (
        {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "id", "regex": "("}},
        "no regular expression",
    ),
    (
        {
            "type": "expect_column_values_to_match_like_pattern",
            "kwargs": {"column": "id", "like_pattern": "a%"},
        },
        "No provider found",
    ),
    (
        {
            "type": "expect_column_values_to_not_be_null",
            "kwargs": {"column": "x", "row_condition": "z > 1", "condition_parser": "spark"},
        },
        "`z` cannot be resolved",
    ),
    (
        {
            "type": "expect_column_values_to_not_be_null",
            "kwargs": {"column": "x", "row_condition": "x >>> (", "condition_parser": "spark"},
        },
        "[PARSE_SYNTAX_ERROR]",
    ),
    ({"type": "expect_column_values_to_not_be_null", "kwargs": 5}, "kwargs is 5"),
    (
        {
            "type": "expect_column_values_to_be_in_set",
            "kwargs": {"column": "id", "value_set": [1, "abc"]},
        },
        "its value_set has texts and others",
    ),
    (
        {
            "type": "expect_column_values_to_match_strftime_format",
            "kwargs": {"column": "x", "strftime_format": "%Y"},
        },
        "x is double, and the rule takes texts: cast it",
    ),
    ({**UNIQUE, "severity": "warning"}, "compares rows with one another"),
    ({**UNIQUE, "severity": "critical", "kwargs": {"column": "id", "mostly": 0.9}}, "mostly below 1"),
    (below("info", meta={"name": "malformed"}), "(malformed): the reason is Sluice's own"),
    (below("info", meta={"name": "late"}), "(late): the reason is Sluice's own"),
]


def test_every_mistake_of_a_suite_is_told_at_once(frame: DataFrame) -> None:
    rules = [
        {**rule, "meta": {"name": f"rule {number}", **rule.get("meta", {})}}
        for number, (rule, _) in enumerate(MISTAKES)
    ]
    twins = [below("info"), below("info")]
    with pytest.raises(SetupError) as refused:
        compile_suite(suite(*rules, *twins), frame.schema, frame.sparkSession)
    missing = [told for _, told in MISTAKES if told not in refused.value.seen]
    assert missing == []
    assert "2 expectations have the reason 'expect_column_values_to_be_between(x)'" in refused.value.seen
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("mistake", [rule for rule, _ in MISTAKES], ids=[told for _, told in MISTAKES])
def test_each_mistake_alone_refuses_the_suite(frame: DataFrame, mistake: Rule) -> None:
    with pytest.raises(SetupError):
        compile_suite(suite(mistake), frame.schema, frame.sparkSession)


def test_a_null_in_a_value_set_refuses_the_suite(frame: DataFrame) -> None:
    """Spark's IN would be null for every value that is not found, and so no row would break the rule."""
    import great_expectations.expectations.core as types

    kinds = [kind for kind in vars(types).values() if "value_set" in getattr(kind, "__fields__", ())]
    rules = [kind(column="id", value_set=["A", None]).configuration.to_json_dict() for kind in kinds]
    named = [{**rule, "meta": {"name": f"rule {at}"}} for at, rule in enumerate(rules)]
    with pytest.raises(SetupError) as refused:
        compile_suite(suite(*named), frame.schema, frame.sparkSession)
    told = re.findall(r"expectation \d+ \(rule (\d+)\): its value_set has null", refused.value.seen)
    assert len(kinds) > 5 and told == [str(at) for at in range(len(kinds))], refused.value.seen


@pytest.mark.parametrize("content", ["", "[]", '{"name": "n"}', '{"expectations": []}'])
def test_a_file_that_is_no_suite_is_refused(frame: DataFrame, tmp_path: Path, content: str) -> None:
    written = tmp_path / "broken.json"
    written.write_text(content)
    with pytest.raises(SetupError, match=r"broken\.json"):
        compile_suite(written, frame.schema, frame.sparkSession)


def test_a_suite_of_an_older_gx_is_told_what_to_rename(frame: DataFrame) -> None:
    older = {
        "expectation_suite_name": "orders",
        "data_asset_type": None,
        "expectations": [
            {"expectation_type": "expect_column_values_to_not_be_null", "kwargs": {"column": "x"}}
        ],
    }
    with pytest.raises(SetupError, match="is a suite of an older Great Expectations") as stop:
        compile_suite(older, frame.schema, frame.sparkSession)
    assert "`expectation_suite_name` is `name` now; `data_asset_type` is no more" in stop.value.seen
    assert "`expectation_type` is `type` now in 1 expectation" in stop.value.seen


def test_a_suite_with_the_mark_of_a_windows_editor_is_the_same_suite(
    frame: DataFrame, tmp_path: Path
) -> None:
    file, marked = tmp_path / "a.json", tmp_path / "b.json"
    file.write_text(json.dumps(suite(below("info"))), encoding="utf-8")
    marked.write_text(json.dumps(suite(below("info"))), encoding="utf-8-sig")
    digests = {compile_suite(one, frame.schema, frame.sparkSession).digest for one in (file, marked)}
    assert len(digests) == 1


def test_uniqueness_over_a_name_with_a_dot_is_told_as_what_it_is(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, 2)], "`a.b` int, c int")
    unique = {
        "type": "expect_compound_columns_to_be_unique",
        "kwargs": {"column_list": ["a.b", "c"]},
        "severity": "critical",
    }
    with pytest.raises(SetupError) as stop:
        compile_suite(suite(unique), frame.schema, spark)
    assert "a`.`b" in stop.value.seen
    assert "window" not in stop.value.seen
