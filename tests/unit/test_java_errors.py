"""Errors of Spark, Hadoop and Kafka are told apart by what they say, by one table alone and by every row of it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest

from etl.common.errors import ServiceAway
from etl.spark import java_errors
from etl.spark.java_errors import SIGNS, Cause, classify

ETL = Path(java_errors.__file__).resolve().parents[1]
RECORDED = Path(__file__).parent / "java_errors"
# Others are of what asks PostgreSQL and S3, and of what a transform is not to blame for.
TABLES = {"spark/java_errors.py", "common/outages.py", "delivery/transform_failed.py"}


@dataclass(frozen=True)
class JavaException:
    """A Java exception as py4j hands it on: what it says, and its cause."""

    text: str
    cause: JavaException | None

    def toString(self) -> str:  # noqa: N802 - as Java has it
        return self.text

    def getCause(self) -> JavaException | None:  # noqa: N802 - likewise
        return self.cause


class RaisedByJava(Exception):
    """An error as PySpark raises it; py4j has its exception in `java_exception`."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__(texts[0])
        self._origin: JavaException | None = None
        for text in reversed(texts):
            self._origin = JavaException(text, self._origin)


@dataclass(frozen=True)
class Recording:
    """What an error said, outermost exception first, and the causes that are to be found in it."""

    title: str
    expected: frozenset[Cause]
    texts: tuple[str, ...]

    def causes(self) -> frozenset[Cause]:
        return frozenset(classify(RaisedByJava(list(self.texts))))


def read(file: Path) -> Iterator[Recording]:
    """Read the recordings of a file: each begins with `== title: CAUSES`, its exceptions follow as Java prints them."""
    for part in file.read_text().split("\n== ")[1:]:
        heading, _, said = part.partition("\n")
        title, _, expected = heading.rpartition(":")
        texts = tuple(text.strip() for text in said.split("\nCaused by: "))
        yield Recording(f"{file.stem}, {title}", frozenset(Cause[name] for name in expected.split()), texts)


RECORDINGS = [one for file in sorted(RECORDED.glob("*.txt")) for one in read(file)]
ROWS = [(cause, sign) for cause, signs in SIGNS.items() for sign in signs]


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: one.title)
def test_a_recorded_error_is_told_as_what_it_was(recording: Recording) -> None:
    assert recording.causes() == recording.expected


@pytest.mark.parametrize(("cause", "sign"), ROWS, ids=[f"{cause.name} {sign}" for cause, sign in ROWS])
def test_without_a_row_a_recorded_error_would_not_be_told(
    cause: Cause, sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIGNS, cause, tuple(other for other in SIGNS[cause] if other != sign))
    assert any(cause not in one.causes() for one in RECORDINGS if cause in one.expected)


def test_each_cause_has_rows() -> None:
    assert set(SIGNS) == set(Cause)


def test_what_storages_say_is_no_damage_though_a_decoder_hands_it_on() -> None:
    decoding = "org.apache.parquet.io.ParquetDecodingException: Can not read value at 1 in block 0 in file file:/in/a"
    for one in RECORDINGS:
        if Cause.FILE_UNREAD in one.expected and Cause.FILE_DAMAGED not in one.expected:
            failed, *storage = one.texts
            assert not storage or Cause.FILE_DAMAGED not in classify(
                RaisedByJava([failed, decoding, *storage])
            )


def test_an_error_of_a_state_names_both_schemas() -> None:
    [of_values] = [one for one in RECORDINGS if one.title.endswith("values of another schema")]
    told = classify(RaisedByJava(list(of_values.texts)))[Cause.STATE_SCHEMA]
    assert (
        told.startswith("Existing value_schema=StructType(") and " and new value_schema=StructType(" in told
    )


def test_an_error_of_sluice_was_told_already() -> None:
    assert classify(ServiceAway("FAILED_READ_FILE, as a sample", remedy="none")) == {}


def test_an_error_without_java_is_told_by_its_own_text() -> None:
    assert set(classify(RuntimeError("KAFKA_DATA_LOSS\nmore"))) == {Cause.RECORDS_GONE, Cause.KAFKA}
    assert classify(RuntimeError("more\nKAFKA_DATA_LOSS")) == classify(RuntimeError()) == {}


def conditions() -> set[str]:
    """Return the names that Spark gives to its errors, and to their kinds."""
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("spark-common-utils_*.jar")
    with ZipFile(jar) as file:
        found = json.loads(file.read("error/error-conditions.json"))
    return set(found) | {kind for one in found.values() for kind in one.get("subClass", {})}


def test_the_conditions_of_spark_that_are_looked_for_are_there() -> None:
    of_kafka = {*SIGNS[Cause.RECORDS_GONE], *SIGNS[Cause.KAFKA]}  # which are in a jar of its own
    names = conditions()
    looked_for = {
        part
        for _, sign in ROWS
        if sign not in of_kafka and re.fullmatch(r"[A-Z_]+(\\\.[A-Z_]+)?", sign)
        for part in sign.split(r"\.")
    }
    assert len(looked_for) > 8
    assert {one for one in looked_for if not any(one in name for name in names)} == set()


JAVA = re.compile(r"\b[A-Z]\w*Exception\b|\b(?:java|org\.apache)\.\w+(?:\.\w+)*\.[A-Z]\w*Error\b")
ASKED = {"getCause", "getCondition", "getErrorClass", "getMessageParameters", "getSqlState", "_origin"}


def told_apart(source: str, names: set[str]) -> list[str]:
    """Name each place of a module that knows Java's errors: a class or condition in a text, or an error asked for it."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ASKED:
            found.append(f"{node.lineno}: {node.attr}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            words = {word for word in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", node.value) if word in names}
            if words or node.value in ASKED or JAVA.search(node.value):
                found.append(f"{node.lineno}: {node.value}")
    return found


def test_no_other_module_knows_what_errors_of_java_say() -> None:
    names = conditions()
    found = {str(file.relative_to(ETL)): told_apart(file.read_text(), names) for file in ETL.rglob("*.py")}
    assert len(found) > 200
    assert {name for name, places in found.items() if places} == TABLES


@pytest.mark.parametrize(
    "planted",
    [
        'if "FAILED_READ_FILE" in str(error): pass',
        "if error.getCondition() == condition: pass",
        'AWAY = ("java.net.ConnectException",)',
        'if name == "UnknownTopicOrPartitionException": pass',
        'overflows = text.count("java.lang.StackOverflowError")',
        'getattr(error, "_origin", None)',
    ],
)
def test_a_planted_text_is_found(planted: str) -> None:
    assert told_apart(f'"""Of java.net.ConnectException."""\n{planted}', conditions())
