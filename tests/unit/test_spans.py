"""Numbers of deliveries, as people write them."""

from __future__ import annotations

import pytest

from etl.common.errors import SetupError
from etl.common.number_ranges import LISTED, WIDEST, format_ranges, numbers_of, parse_ranges, shortened


@pytest.mark.parametrize(
    ("numbers", "text"), [((7,), "7"), ((9, 4, 6, 5), "4..6,9"), ((1, 3, 5), "1,3,5"), ((), "")]
)
def test_exactly_the_numbers_are_written_and_read_again(numbers: tuple[int, ...], text: str) -> None:
    assert format_ranges(numbers) == text
    if text:
        read = [n for first, last in parse_ranges("--deliveries", text) for n in range(first, last + 1)]
        assert read == sorted(numbers)


def test_a_long_list_is_shortened_to_ranges_that_are_read_as_the_same_numbers_in_their_order() -> None:
    few = list(range(LISTED))
    assert shortened(few) == few
    many = [*range(50, 4000), 7, 8, 5000, *range(9, 12)]
    assert shortened(many) == ["50..3999", "7..8", 5000, "9..11"]
    assert list(numbers_of("deliveries", shortened(many))) == many
    with pytest.raises(SetupError, match="more than 1,000,000 numbers"):
        list(numbers_of("deliveries", [f"1..{WIDEST + 1}"]))
    assert len(list(numbers_of("deliveries", [f"1..{WIDEST}"]))) == WIDEST


@pytest.mark.parametrize("text", ["", "1,", "7..4", "a", "1...2", "9" * 20])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match="--deliveries"):
        parse_ranges("--deliveries", text)
