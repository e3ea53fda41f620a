"""docs/settings.md has every setting, with its default."""

from __future__ import annotations

import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from etl.common.errors import SluiceError
from etl.common.settings import CONFIG_VARIABLE, PREFIX, Settings
from tests.support.environment import REPOSITORY

ENTRY = re.compile(r"^- \*\*`(\w+)`\*\*, default(?: `(.+?)`|: (.+?))\. ", re.MULTILINE)
PAGE = (REPOSITORY / "docs/settings.md").read_text()


def test_every_setting_is_there_once() -> None:
    listed = [name for name, _, _ in ENTRY.findall(PAGE)]
    assert sorted(listed) == sorted(
        [CONFIG_VARIABLE, *(PREFIX + name.upper() for name in Settings.model_fields)]
    )


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_default_is_the_one_on_the_page(name: str) -> None:
    [(written, words)] = [
        (written, words) for found, written, words in ENTRY.findall(PAGE) if found == PREFIX + name.upper()
    ]
    default = Settings.model_fields[name].get_default(call_default_factory=True, validated_data={})
    if default in (None, 0, "", Path()) or isinstance(default, tuple) or name == "dags" or default == {}:
        assert words or written.startswith(("<home>/", "{}"))
    elif isinstance(default, timedelta):
        assert TypeAdapter(timedelta).validate_python(written) == default
    else:
        assert written == str(default)


def test_the_example_of_a_file_has_every_setting() -> None:
    lines = (REPOSITORY / "sluice.toml.example").read_text().splitlines()
    written = "\n".join(line.removeprefix("# ") for line in lines if re.match(r'# (\w+ = |\[|")', line))
    assert set(tomllib.loads(written)) == set(Settings.model_fields)


def test_each_exit_code_is_in_the_table_of_commands() -> None:
    page = (REPOSITORY / "docs/commands.md").read_text()
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    raised = {kind.exit_code for kind in every(SluiceError)}
    assert raised <= listed
    assert listed - raised == {0, 1, 130, 143}


def every(kind: type[Any]) -> set[type[Any]]:
    return {kind}.union(*(every(one) for one in kind.__subclasses__()))
