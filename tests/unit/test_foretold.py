"""A plan names the files that today's declaration will not read, and no other."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from etl.pipeline import Append, Files, Pipeline
from etl.sources.evidence import look
from etl.sources.kinds.declared import kind_of
from etl.sources.unreadable import _said


def told(root: Path, files: Files, schema: str) -> dict[str, str]:
    """Return why files can't be read as declared, by the name of the file."""
    declared = Pipeline(name="p", sources=(files,), schema=schema, transform=lambda df: df, sink=Append())
    uris = [path.as_uri() for path in sorted(root.iterdir())]
    found = kind_of(declared).foretold(look(uris, landing=str(root)))
    return {uri.rpartition("/")[2]: why for uri, why in found.items()}


def test_a_csv_header_of_other_columns(tmp_path: Path) -> None:
    other = "its CSV header is a, c; the schema is a, b, d: it lacks b; d, has c instead"
    files = {
        "fewer.csv": b"a,b\n1,2\n",
        "other.csv": b"a,c\n1,2\n",
        "other.csv.gz": gzip.compress(b"a,c\n1,2\n"),
        "swapped.csv": b"\nb,a,d\r\n1,2,3\r\n",
        "good.csv": b'\xef\xbb\xbfA,"b",D\n1,2,3\n',
        "good.csv.gz": gzip.compress(b"a,b,d\n"),
        "good.csv.deflate": zlib.compress(b"a,b,d\n"),
        "empty.csv": b"",
        "torn.csv.gz": b"\x1f\x8b no gzip",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    schema = "a int, `b` decimal(5,2), d string"
    assert told(tmp_path, Files("*.csv*", format="csv"), schema) == {
        "other.csv": other,
        "other.csv.gz": other,
    }
    assert told(tmp_path, Files("*.csv*", format="csv", header=False), schema) == {}
    (tmp_path / "latin.csv").write_bytes("a;b;ü\n1;2;3\n".encode("latin-1"))
    options = {"sep": ";", "encoding": "ISO-8859-1"}
    found = told(tmp_path, Files("*.csv*", format="csv", options=options), "a int, b int, ü int")
    assert "latin.csv" not in found
    assert (
        found["fewer.csv"]
        == "its CSV header is a,b; the schema is a, b, ü: it lacks a; b; ü, has a,b instead"
    )


def test_a_parquet_footer_of_other_types(tmp_path: Path) -> None:
    kinds = {
        "text": pa.string(),
        "wider": pa.int64(),
        "good": pa.int16(),
    }
    for name, kind in kinds.items():
        pq.write_table(pa.table({"ID": pa.array([1], pa.int16()).cast(kind)}), tmp_path / f"{name}.parquet")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "lacking.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    found = told(tmp_path, Files("*.parquet"), "id integer comment 'a number', s string")
    assert found.pop("torn.parquet").startswith("Parquet magic bytes not found")
    assert found == {
        "text.parquet": "id is string, declared integer comment 'a number'",
        "wider.parquet": "id is int64, declared int",
    }


def test_a_file_of_null_bytes_has_a_reason_that_can_be_recorded(tmp_path: Path) -> None:
    """PostgreSQL takes no NUL, neither in a text nor in JSON."""
    (tmp_path / "wide.csv").write_bytes("a\x1b\n1\n".encode("utf-16-le"))
    found = told(tmp_path, Files("*.csv"), "a int")
    assert found == {
        "wide.csv": r"its CSV header is a\x00\x1b\x00; the schema is a: it lacks a, has a\x00\x1b\x00 instead"
    }
    header = "Column in footer does not conform.\n Footer: a\0\x1b\0, b"
    assert _said(ValueError(header)) == r"Column in footer does not conform. Footer: a\x00\x1b\x00, b"


def test_what_arrow_alone_knows_of_a_column_is_foretold_of_none(tmp_path: Path) -> None:
    columns = {
        "dictionary": pa.array(["a", "b"]).dictionary_encode(),
        "null": pa.nulls(2),
        "bytes": pa.array([b"ab", b"cd"], pa.binary(2)),
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16, b"b" * 16], pa.binary(16))),
    }
    for name, values in columns.items():
        pq.write_table(pa.table({"s": values}), tmp_path / f"{name}.parquet")
    assert told(tmp_path, Files("*.parquet"), "s string") == {}
    found = told(tmp_path, Files("*.parquet"), "s int")
    assert found["dictionary.parquet"] == "s is string, declared int"
    assert "null.parquet" not in found
