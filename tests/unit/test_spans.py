"""Numbers of deliveries, as people write them."""

from __future__ import annotations

import pytest

from etl.common.errors import SetupError
from etl.common.number_ranges import format_ranges, parse_ranges


@pytest.mark.parametrize(
    ("numbers", "text"), [((7,), "7"), ((9, 4, 6, 5), "4..6,9"), ((1, 3, 5), "1,3,5"), ((), "")]
)
def test_exactly_the_numbers_are_written_and_read_again(numbers: tuple[int, ...], text: str) -> None:
    assert format_ranges(numbers) == text
    if text:
        read = [n for first, last in parse_ranges("--deliveries", text) for n in range(first, last + 1)]
        assert read == sorted(numbers)


@pytest.mark.parametrize("text", ["", "1,", "7..4", "a", "1...2", "9" * 20])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match="--deliveries"):
        parse_ranges("--deliveries", text)
