from __future__ import annotations

import subprocess
import sys
from collections import Counter
from random import Random

import pytest

from etl.quality.verdict import FLAGS_PER_WORD, Counts, StageRule


def test_a_flag_counts_the_rows_of_every_mask_that_has_its_bit() -> None:
    counts = Counts(rows=10, held=0, histograms=({0b000: 4, 0b001: 3, 0b011: 2, 0b100: 1},))
    assert [counts.count(flag) for flag in range(4)] == [5, 2, 1, 0]


def test_flags_of_the_second_word_are_not_those_of_the_first() -> None:
    top = 1 << (FLAGS_PER_WORD - 1)
    counts = Counts(rows=5, held=0, histograms=({top: 2, 0: 3}, {1: 4, 0: 1}))
    assert counts.count(FLAGS_PER_WORD - 1) == 2
    assert counts.count(FLAGS_PER_WORD) == 4


def test_every_word_fits_in_a_signed_64_bit_column() -> None:
    assert sum(1 << bit for bit in range(FLAGS_PER_WORD)) == 2**63 - 1


def test_an_empty_batch_has_no_flagged_rows() -> None:
    assert Counts(rows=0, held=0, histograms=()).count(7) == 0


def test_histograms_give_the_count_of_any_flag() -> None:
    draw = Random(7)
    rows = [{flag for flag in range(130) if draw.random() < 0.2} for _ in range(200)]
    words = [
        Counter(
            sum(1 << flag % FLAGS_PER_WORD for flag in row if flag // FLAGS_PER_WORD == word) for row in rows
        )
        for word in range(3)
    ]
    counts = Counts(rows=len(rows), held=0, histograms=tuple(words))
    assert [counts.count(flag) for flag in range(130)] == [
        sum(flag in row for row in rows) for flag in range(130)
    ]


def test_nouns_are_frozen() -> None:
    rule = StageRule(number=0, reason="r", broken=0, columns=("a",), quarantines=True)
    with pytest.raises(AttributeError):
        rule.reason = "other"  # type: ignore[misc]


@pytest.mark.parametrize("module", ["etl.quality.verdict", "etl.quality"])
def test_importing_costs_neither_spark_nor_great_expectations(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "heavy = {'pyspark', 'great_expectations', 'pandas'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
