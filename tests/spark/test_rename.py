"""A pipeline that was renamed goes on from its checkpoint: nothing is read twice, and its state is what it was."""

from __future__ import annotations

from pathlib import Path

from etl.operations.control.rename import rename
from tests.support.home import Home

DECLARATION = """
from etl.pipeline import Append, Files, Pipeline

PIPELINE = Pipeline(
    name="{name}", sources=(Files("taps/*.jsonl"),), schema="id int", transform=lambda df: df.dropDuplicates(["id"]),
    sink=Append(table="warehouse.taps"),
)
"""


def test_the_next_run_finds_nothing_new_then_delivers_a_new_file_once_by_the_old_state(home: Home) -> None:
    home.declare("taps", text=DECLARATION.format(name="taps"))
    home.write("taps/a.jsonl", '{"id": 1}\n{"id": 2}\n')
    first = home.run("taps")
    (home.root / "my pipelines" / "taps.py").unlink()
    home.declare("visits", text=DECLARATION.format(name="visits"))
    rename(home.place, "taps", "visits", who="Ada")
    idle = home.run("visits")
    assert (idle.batches, idle.stream, idle.outcome) == (0, first.stream, "done")
    home.write("taps/b.jsonl", '{"id": 2}\n{"id": 3}\n')
    assert home.run("visits").deliveries == [2]
    assert home.ask("SELECT id, _batch_id FROM warehouse.taps ORDER BY id") == [(1, 0), (2, 0), (3, 1)]
    assert home.ask(
        "SELECT path, delivery_id FROM sluice.delivery_input WHERE pipeline = 'visits' ORDER BY 1"
    ) == [
        ("taps/a.jsonl", 1),
        ("taps/b.jsonl", 2),
    ]
    assert [one.name for one in Path(home.place.settings.checkpoints).iterdir()] == ["taps"]
    home.assert_clean("visits")
