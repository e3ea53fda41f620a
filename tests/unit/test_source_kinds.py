"""What kind a source is, is asked where its kind is made, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ETL = Path(__file__).resolve().parents[2] / "etl"
# What is declared, what is opened, what is known before, what a checkpoint tells, and how the stream goes on.
DECLARED = {"Files", "Kafka", "Rate", "Socket", "DeclaredSource"}
BASES = {
    "sources/base.py": {"Source"},
    "sources/kinds/base.py": {"SourceKind"},
    "spark/checkpoint/reader.py": {"Checkpoint"},
}
BASES |= {"runs/kinds/base.py": {"PipelineStream"}}
TELL_APART = {
    "sources/kinds/declared.py": "makes the kind",
    "runs/kinds/open.py": "makes what runs know of the kind, by it",
    "pipeline/source_checks.py": "checks a user's declaration, which may hold anything, by field",
}

Texts = Mapping[str, str]  # of each module, by its path below etl
CLASS = re.compile(r"^class (\w+)\(([^)]*)\)", re.MULTILINE)
# What has none of these is not worth parsing.
MAY_ASK = re.compile(r"\b(isinstance|issubclass|type)\(|^ *case \w", re.MULTILINE)


@pytest.fixture(scope="module")
def texts() -> Texts:
    return {str(file.relative_to(ETL)): file.read_text() for file in ETL.rglob("*.py")}


@pytest.fixture(scope="module")
def kinds(texts: Texts) -> set[str]:
    """Return the names of all classes that tell one kind from another, those that are added later included."""
    found = DECLARED | {name for names in BASES.values() for name in names}
    classes = [one for text in texts.values() for one in CLASS.findall(text)]
    bases = {name: set(re.findall(r"\w+", of)) for name, of in classes}
    while more := {name for name, of in bases.items() if found & of} - found:
        found |= more
    return found


def names_in(*nodes: ast.AST) -> set[str]:
    within = [one for node in nodes for one in ast.walk(node)]
    return {one.id for one in within if isinstance(one, ast.Name)} | {
        one.attr for one in within if isinstance(one, ast.Attribute)
    }


def questions(text: str, of: set[str]) -> Iterator[str]:
    """Return each place that asks whether something is of one of these classes."""
    for node in ast.walk(ast.parse(text)) if MAY_ASK.search(text) else ():
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass" as asked), args=[_, kind]):
                found = of & names_in(kind)
            case ast.MatchClass(cls=kind):
                asked, found = "case", of & names_in(kind)
            case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=others):
                asked, found = "type", of & names_in(*others)
            case _:
                continue
        if found:
            yield f"line {node.lineno}: {asked} {', '.join(sorted(found))}"


def test_no_module_but_those_that_make_the_kind_asks_of_what_kind_a_source_is(
    texts: Texts, kinds: set[str]
) -> None:
    asked = {module: list(questions(text, kinds)) for module, text in texts.items()}
    assert {module: found for module, found in asked.items() if found and module not in TELL_APART} == {}
    assert all(asked[module] for module in TELL_APART), "a module that asks no longer need not be allowed to"


def test_the_classes_that_must_not_be_asked_for_are_found(texts: Texts, kinds: set[str]) -> None:
    for module, names in BASES.items():
        assert all(f"\nclass {name}" in texts[module] for name in names), module
    assert {"FileSource", "KafkaKind", "SocketSource", "TopicCheckpoint", "LiveStream"} <= kinds


@pytest.mark.parametrize(
    "planted",
    [
        "assert isinstance(source, KafkaSource)",
        "if isinstance(pipeline.sources[0], (int, declaration.Files)): pass",
        "found = [one for one in pipeline.sources if isinstance(one, Rate | Socket)]",
        "if issubclass(kind.checkpoint, TopicCheckpoint): pass",
        "if type(stream) is LiveStream: pass",
        "match kind:\n    case FileKind(files=files): pass",
    ],
)
def test_a_planted_question_is_found(kinds: set[str], planted: str) -> None:
    [_] = questions(planted, kinds)
