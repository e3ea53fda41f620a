"""What a recipe says becomes of its files is what `sluice try` makes of them."""

from __future__ import annotations

import etl
from etl.pipeline import load_pipelines
from tests.support.documented import recipes
from tests.support.home import Home


def test_files_of_recipes_become_what_their_pages_say(home: Home) -> None:
    documented = recipes()
    assert len(documented) >= 6
    for recipe in documented:
        home.declare(text=recipe.declaration)  # in the place of the home's own
        files = []
        for path, text in recipe.files.items():
            if path.startswith("suites/"):
                (home.root / "our-suites" / path.removeprefix("suites/")).write_text(text)
            else:
                files.append(home.write(path, text))
        [name] = load_pipelines(home.place.settings.pipelines)
        said = etl.try_out(name, *files, spark=home.spark, settings=home.place.settings)
        assert list(said.columns) == list(recipe.columns), recipe
        found = [["" if value is None else str(value) for value in row] for row in said.rows]
        assert sorted(found) == sorted(map(list, recipe.rows)), recipe
