"""Packed rows that tasks staged are read once each, a few parts at a time, while more are staged."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg2
import pytest

from etl.common.database import transaction
from etl.sinks.warehouse import staged_parts
from etl.sinks.warehouse.packed_rows import PackedRows
from etl.sinks.warehouse.staged_parts import StagedParts
from tests.support import oracle

TABLE = "d1_parts"
DRIVER, ONE, OTHER = -1, 3, 2**40
Part = tuple[int, int, bool]  # task, number, held


@pytest.fixture
def staging(dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make an attempt's table of packed rows, which is read two parts at a time."""
    monkeypatch.setattr(staged_parts, "MOST", 2)
    oracle.ask(
        dsn,
        f"CREATE TABLE sluice_stage.{TABLE}"
        " (held boolean, rows bigint, size bigint, packed bytea, part bigint, _task bigint)",
    )
    return dsn


def bytes_of(part: Part) -> bytes:
    """Return what a part has packed: bytes of any value, and none of some."""
    task, number, _ = part
    return bytes(range(256)) * (number % 3) + str(task).encode() * (number % 2)


def stage(dsn: str, parts: Iterable[Part]) -> None:
    for task, number, held in parts:
        packed = psycopg2.Binary(bytes_of((task, number, held)))
        values = (held, number + 1, 2**33 + number, packed, number, task)
        oracle.ask(dsn, f"INSERT INTO sluice_stage.{TABLE} VALUES (%s, %s, %s, %s, %s, %s)", values)


def as_read(parts: Iterable[Part]) -> list[PackedRows]:
    return [
        PackedRows(held=part[2], rows=part[1] + 1, size=2**33 + part[1], packed=bytes_of(part))
        for part in parts
    ]


FIRST: list[Part] = [(task, number, number % 3 == 1) for task in (ONE, OTHER) for number in range(5)]
THEN: list[Part] = [
    (DRIVER, 0, True),
    *((ONE, number, number % 2 == 0) for number in (5, 6, 7)),
    (OTHER, 5, False),
]


@pytest.mark.parametrize("held", [None, True, False])
@pytest.mark.parametrize("tasks", [None, [DRIVER, OTHER], [ONE]])
def test_each_part_is_read_once(staging: str, held: bool | None, tasks: list[int] | None) -> None:
    wanted = [
        part for part in [*FIRST, *THEN] if held in (None, part[2]) and (tasks is None or part[0] in tasks)
    ]
    parts, found = StagedParts(staging=TABLE, held=held, tasks=tasks), list[PackedRows]()
    stage(staging, FIRST)
    with transaction(staging) as cursor:
        found += parts.read(cursor)
        stage(staging, THEN)
        while some := parts.read(cursor):
            assert len(some) <= 2
            found += some
        assert parts.read(cursor) == []
    assert sorted(found, key=repr) == sorted(as_read(wanted), key=repr)
    newest = {task: max(number for one, number, _ in wanted if one == task) for task, _, _ in wanted}
    assert parts.last == newest
