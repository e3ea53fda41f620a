"""Values of others in Markdown are shown as they are."""

from __future__ import annotations

import pytest

from etl.airflow.questions.markdown import escaped


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("id is given", "id is given"),
        ("a|b", "a\\|b"),
        ("<img src=x onerror=y>", "\\<img src\\=x onerror\\=y\\>"),
        ("[here](javascript:x)", "\\[here\\]\\(javascript\\:x\\)"),
        ("**big** `code` _x_ ~y~ &amp; #1", "\\*\\*big\\*\\* \\`code\\` \\_x\\_ \\~y\\~ \\&amp; \\#1"),
        ("a\n\n# title\r\n- item", "a \\# title \\- item"),
        ("a\x1b[31m\0", "a\\\\x1b\\[31m\\\\x00"),
    ],
)
def test_no_value_is_markup_a_link_or_a_line_of_its_own(text: str, written: str) -> None:
    assert escaped(text) == written


def test_a_long_value_is_cut() -> None:
    assert escaped("x" * 50, 10) == "x" * 9 + "…"
