"""Counts are written in one way: with their thousands, and with the noun in the right number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from etl.common.wording import moment_of_ms, pluralize
from tests.support.environment import REPOSITORY

NOUNS = (
    "batches|bytes|characters|columns|corrections|deliveries|digits|elements|expectations|features|fields|files|flights"
    "|groups|jars|keys|lines|models|nulls|objects|offsets|partitions|ranges|records|replays|reports|retries|rows|rules|sources"
    "|tables|tasks|times|tries|uploads|values"
)
QUALITIES = "declared|delivered|different|held|input|landed|malformed|released|unfinished"
BY_HAND = re.compile(rf" (?:(?:{QUALITIES}) )?(?:{NOUNS})\b(?!/)")
IN_TEMPLATE = re.compile(rf"\|(?:number|length) ?}}}}(?:</b>)?{BY_HAND.pattern}")


def by_hand(source: str) -> Iterator[int]:
    """Yield the lines of f-strings that write a value and then a plural, whatever the value; a constant may be known."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not (isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant)):
                continue
            constant = ast.unparse(value.value).rpartition(".")[2].isupper()
            if BY_HAND.match(str(text.value)) and not constant:
                yield value.lineno


def by_hand_in_template(source: str) -> Iterator[int]:
    """Yield the lines of a template that write a value and then a plural, whatever the value; a constant may be known."""
    for number, line in enumerate(source.splitlines(), 1):
        for found in IN_TEMPLATE.finditer(line):
            value = line[: found.start()].rpartition("{{")[2]
            if not value.strip().isupper():
                yield number


def test_no_sentence_writes_a_plural_behind_a_number_by_hand() -> None:
    looked = {"*.py": by_hand, "*.html": by_hand_in_template, "*.j2": by_hand_in_template}
    found = {
        f"{file.relative_to(REPOSITORY)}:{line}"
        for pattern, look in looked.items()
        for file in sorted((REPOSITORY / "etl").rglob(pattern))
        for line in look(file.read_text())
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    ("written", "caught"),
    [
        ('f"{count} rows"', True),
        ('f"{len(files):,} input files of {name}"', True),
        ('f"{name}: {count:,} held rows, {more}"', True),
        ('f"{MOST} columns"', False),
        ('f"{rate:,.0f} rows/s"', False),
        ('f"{count} of its rows"', False),
        ('f"{retries} retries are declared"', True),
        ("f\"{pluralize(count, 'row')} held\"", False),
    ],
)
def test_a_planted_plural_is_found(written: str, caught: bool) -> None:
    assert bool(list(by_hand(written))) is caught


@pytest.mark.parametrize(
    ("written", "caught"),
    [
        ("{{ one.rows|number }} rows", True),
        ("<b>{{ it.records|number }}</b> records read", True),
        ("{{ rules|length }} expectations", True),
        ("{{ MOST|number }} rows are held", False),
        ("{{ rows.uncorrected|number }} that", False),
        ("{{ one.rows|pluralize('row') }} held", False),
    ],
)
def test_a_planted_plural_of_a_template_is_found(written: str, caught: bool) -> None:
    assert bool(list(by_hand_in_template(written))) is caught


def test_a_count_has_its_thousands_and_its_noun_the_right_number() -> None:
    assert [pluralize(count, "batch", "batches") for count in (0, 1, 2, 1234)] == [
        "0 batches",
        "1 batch",
        "2 batches",
        "1,234 batches",
    ]
    assert pluralize(1, "row") == "1 row"


@pytest.mark.parametrize(
    ("since_1970", "written"),
    [
        (0, "1970-01-01 00:00:00 UTC"),
        (253_402_300_799_999, "9999-12-31 23:59:59 UTC"),
        (1_700_000_000_000_000, "1,700,000,000,000,000 ms since 1970"),
    ],
)
def test_a_moment_is_written_though_python_has_no_such_year(since_1970: int, written: str) -> None:
    assert moment_of_ms(since_1970) == written
