"""Each guard of the model has its place in the code, and a test of the code that shows it there."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.support.environment import REPOSITORY
from tests.support.model.guards import Guard
from tests.support.model.places import IN_CODE


@cache
def defined(file: Path) -> set[str]:
    """Return the names of a file's functions, those of methods behind their class."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return names


def test_each_guard_has_its_place_in_the_code() -> None:
    assert IN_CODE.keys() == set(Guard)


@pytest.mark.parametrize("guard", Guard, ids=lambda guard: guard.name)
def test_the_place_and_the_test_of_a_guard_are_there(guard: Guard) -> None:
    place = IN_CODE[guard]
    module = REPOSITORY.joinpath(*place.module.split(".")).with_suffix(".py")
    assert place.function in defined(module)
    file, name = place.test.split("::")
    assert name in defined(REPOSITORY / file)
