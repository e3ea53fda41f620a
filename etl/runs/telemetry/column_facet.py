"""Makes OpenLineage's facet of column lineage from what the outbox has of a transform's plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openlineage.client.event_v2 import InputDataset
from openlineage.client.facet_v2 import column_lineage_dataset as facet

from etl.spark.column_lineage import DIRECT

Origin = tuple[bool, str]  # whether it is a lookup, and its name or the stream's


def column_facet(
    made_of: Mapping[str, Any] | None, read: Sequence[tuple[Origin, InputDataset]]
) -> facet.ColumnLineageDatasetFacet | None:
    """Return the facet, whose fields are those of each data set that was read of a stream or lookup; None without any."""
    if made_of is None:
        return None
    sets: dict[Origin, list[InputDataset]] = defaultdict(list)
    for origin, one in read:
        sets[origin].append(one)
    fields = {
        name: facet.Fields(inputFields=inputs)
        for name, lineage in made_of["columns"].items()
        if (inputs := list(_fields(lineage, sets)))
    }
    if not fields:
        return None
    return facet.ColumnLineageDatasetFacet(fields=fields, dataset=list(_fields(made_of["rows"], sets)))


def _fields(
    lineage: Sequence[Mapping[str, Any]], sets: Mapping[Origin, Sequence[InputDataset]]
) -> Iterator[facet.InputField]:
    for one in lineage:
        for read in sets.get((one["lookup"], one["name"]), ()):
            yield facet.InputField(
                namespace=read.namespace,
                name=read.name,
                field=one["field"],
                transformations=[
                    facet.Transformation(type="DIRECT" if how in DIRECT else "INDIRECT", subtype=how)
                    for how in one["how"]
                ],
            )
