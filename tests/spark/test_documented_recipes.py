"""What a recipe says becomes of its files is what `sluice try` makes of them; Kafka's properties are taken."""

from __future__ import annotations

import etl
from etl.pipeline import load_pipelines
from etl.sources.kafka.cluster import open_cluster
from tests.support.documented import FENCED, blocks, pages, recipes
from tests.support.home import Home


def test_properties_of_kafka_are_about_how_to_reach_the_brokers(home: Home) -> None:
    [block] = blocks("properties")
    file = home.root / "kafka.properties"
    file.write_text(block.text)
    settings = home.place.settings.model_copy(update={"kafka": "broker-1:9092", "kafka_properties": file})
    assert home.spark is not None
    cluster = open_cluster(home.spark, settings, "orders")
    assert len(cluster.properties) == len(block.text.splitlines())


def test_files_of_recipes_become_what_their_pages_say(home: Home) -> None:
    documented = recipes()
    titles = [title for page in pages() for _, _, title, _ in FENCED.findall(page.read_text()) if title]
    assert sorted(titles) == sorted(path for recipe in documented for path in recipe.files)
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
        assert not said.stops, recipe
        assert list(said.columns) == list(recipe.columns), recipe
        found = [["" if value is None else str(value) for value in row] for row in said.rows]
        assert sorted(found) == sorted(map(list, recipe.rows)), recipe
