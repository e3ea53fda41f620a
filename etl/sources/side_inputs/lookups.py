"""A pipeline's lookups: small tables that a transform joins, read whole and kept as they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from etl.common.errors import InputsChanged, NeedsPerson, ServiceAway, SetupError
from etl.common.paths import require_utf8
from etl.common.record_bounds import Bounds
from etl.common.record_columns import DETAIL, MALFORMED_COLUMN, ORIGIN, SOURCE_PATH
from etl.common.wording import pluralize
from etl.ledger.inputs import LOOKUP_SOURCE, Input
from etl.pipeline import Lookup, Pipeline
from etl.sources.evidence import changed, look, uri_at
from etl.sources.landing import files_there, listed_path
from etl.sources.parsing import Reading, ddl_fields, read_files, read_here
from etl.sources.side_inputs.scorers import ModelVersions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


LONGEST_SHOWN = 200  # characters of a malformed record in a message


class SideInputsChanged(Exception):
    """A lookup, or a model, is not as it was when the run read it."""


def read_lookup(
    spark: SparkSession, pipeline: Pipeline, name: str, landing: str, bounds: Bounds
) -> tuple[DataFrame, tuple[Input, ...]]:
    """Read a lookup as it is now; return its table and its files.

    The table is held in the driver: a file that changes during a batch changes nothing. Raises SetupError
    when there is no file or it can't be read as declared, ServiceAway when it changed while it was read, and
    NeedsPerson when a key is there twice.
    """
    from pyspark.sql import functions as F

    lookup, where = pipeline.lookups[name], f"lookup {name!r} of pipeline {pipeline.name}"
    fields = ddl_fields(lookup.schema, f"{where}: schema", pipeline.file)
    before = version(lookup, landing)
    if not before:
        listed_path(lookup, landing, where)  # which says so where not even the folder is there
        raise SetupError(f"The {where} has no file: none is {lookup.pattern}", remedy="land it")
    rows, wrong = _rows(spark, lookup, fields, {one.uri: one.size for one in before}, bounds)
    if changes := changed(before, version(lookup, landing)):
        raise ServiceAway(f"The {where} changed while it was read: {'; '.join(changes)}", remedy="run again")
    if rows is None:
        raise SetupError(
            f"The {where} can't be read as declared: "
            + "; ".join(f"{uri}: {why}" for uri, why in wrong.items()),
            remedy=f"correct {lookup.pattern}, or the lookup's schema in the declaration",
        )
    bad = rows.filter(rows.column(MALFORMED_COLUMN).is_valid())
    if bad:
        text, detail = (bad.column(name)[0].as_py() for name in (MALFORMED_COLUMN, DETAIL))
        shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
        seen = f"The {where} has {pluralize(len(bad), 'malformed record')}, such as {shown!r}"
        raise SetupError(f"{seen}: {detail}" if detail else seen, remedy=f"correct {lookup.pattern}")
    _refuse_doubled(rows, lookup, where)
    held = spark.createDataFrame(rows.drop_columns([MALFORMED_COLUMN, DETAIL, ORIGIN, SOURCE_PATH]), fields)
    return F.broadcast(held), before


def _rows(
    spark: SparkSession, lookup: Lookup, fields: StructType, sizes: Mapping[str, int], bounds: Bounds
) -> tuple[pa.Table | None, dict[str, str]]:
    """Read all of a lookup's files; None where some can't be read, or only as other values, with why by their URI.

    `sizes` are their bytes, by URI. What can be is read in this process; why it can't, a job of Spark tells. A file that
    is gone was replaced while it was read, which the caller finds.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from etl.sources.parquet_types import footers
    from etl.sources.unreadable import FileUnfit, FileUnread, unreadable

    uris = [*sizes]
    if lookup.kind not in ("parquet", "text"):
        with suppress(FileUnfit, FileUnread):
            return read_here(lookup, fields, sizes, reading=Reading(bounds=bounds)), {}
    found = footers(uris if lookup.kind == "parquet" else (), fields)
    reading = Reading(read_as=found.read_as, bounds=bounds)
    read = partial(read_files, spark, lookup, fields, reading=reading)
    wrong = {**found.misfits}
    try:
        if not wrong:
            return read(uris).toArrow(), {}
    except (PySparkException, Py4JJavaError):
        try:
            wrong |= unreadable(uris, read)
        except InputsChanged as error:
            wrong[lookup.pattern] = error.seen
        if not wrong:
            raise
    return None, wrong


def version(lookup: Lookup, landing: str) -> tuple[Input, ...]:
    """Return the lookup's files as they are now.

    Like Spark, it leaves out names that begin with _ or a dot, of folders too.
    """
    paths = sorted(files_there(lookup.pattern, landing))
    seen = [path for path in paths if not any(part.startswith(("_", ".")) for part in path.split("/"))]
    require_utf8(seen)
    uris = [uri_at(path, landing) for path in seen]
    return tuple(look(uris, landing=landing, source=LOOKUP_SOURCE))


def versions(pipeline: Pipeline, landing: str, models: ModelVersions | None) -> dict[str, tuple[Input, ...]]:
    """Return the files of each lookup, and the version of each model, as they are now."""
    now = {name: version(lookup, landing) for name, lookup in pipeline.lookups.items()}
    if models is not None:
        now |= {name: (models.required(pipeline.name, name).input,) for name in pipeline.models}
    return now


def as_recorded(seen: Mapping[str, Sequence[Input]]) -> dict[str, list[dict[str, Any]]]:
    """Return what the ledger keeps, with each batch, of the lookups and models that it is made with."""
    return {name: [one.__dict__ for one in files] for name, files in seen.items()}


def _refuse_doubled(rows: pa.Table, lookup: Lookup, where: str) -> None:
    """Raise NeedsPerson where a key is there twice, which would double the rows that join it.

    A null key joins nothing.
    """
    keys = Counter(zip(*(rows.column(column).to_pylist() for column in lookup.key), strict=True))
    doubled = sorted(key for key, count in keys.items() if count > 1 and None not in key)
    if doubled:
        some = ", ".join(str(key[0] if len(key) == 1 else key) for key in doubled[:5])
        seen = f"The {where} has {pluralize(len(doubled), 'key')} ({', '.join(lookup.key)}) more than once: {some}"
        raise NeedsPerson(seen, remedy=f"make each key unique in {lookup.pattern}, then run again")
