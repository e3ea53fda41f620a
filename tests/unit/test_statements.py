"""Each SQL statement is executed by the module that its file is named after, with exactly its parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

import pytest

from etl.common.statements import SQL_FOLDER, file_of

ETL = Path(__file__).resolve().parents[2] / "etl"
PAGES = "etl.airflow.pages.records"  # its `fetch_rows` executes the statement of which it is told the name
NOT_OURS = {
    SQL_FOLDER / "rights.sql"
}  # a script that is printed; so are the migrations, which are applied whole

Files = Mapping[str, str]  # a module, by its dotted name, and the text of its SQL file
Sources = Mapping[str, str]  # a module, and its own text


@dataclass(frozen=True, kw_only=True)
class Call:
    """A place that executes or composes a statement."""

    at: str
    owner: str  # the module whose statement it is
    name: str | None  # None: it is not written out
    given: frozenset[str] | None  # the names of what it is given; None: they are not written out


def breaches(files: Files, sources: Sources) -> list[str]:
    """Say what does not hold of these modules and their SQL."""
    statements = {module: dict(_named(text)) for module, text in files.items()}
    trees = {module: ast.parse(source) for module, source in sources.items()}
    calls = [call for module, tree in trees.items() for call in _calls(module, tree)]
    used = {(call.owner, call.name) for call in calls}
    return [
        *(f"{module} has SQL and is no module" for module in files if module not in sources),
        *(problem for module, tree in trees.items() for problem in _taken(module, tree)),
        *(problem for call in calls for problem in _wrong(call, statements)),
        *(
            f"{module}: {name} is not used"
            for module, named in statements.items()
            for name in named
            if (module, name) not in used
        ),
    ]


def _named(text: str) -> Iterator[tuple[str, str]]:
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return zip(parts[1::2], parts[2::2], strict=True)


def _calls(module: str, tree: ast.Module) -> Iterator[Call]:
    """Find the calls of `STATEMENTS.execute` and `STATEMENTS.compose`, and those of the pages' `fetch_rows`."""
    told = module == PAGES or any(
        isinstance(node, ast.ImportFrom)
        and node.module == PAGES
        and any(one.name == "fetch_rows" for one in node.names)
        for node in tree.body
    )
    for node in _own(module, tree):
        if not isinstance(node, ast.Call):
            continue
        if told and isinstance(node.func, ast.Name) and node.func.id == "fetch_rows":
            owner, place = PAGES, 1
        elif method := _method(node):
            owner, place = module, 0 if method == "compose" else 1
        else:
            continue
        name = node.args[place]
        yield Call(
            at=f"{module}:{node.lineno}",
            owner=owner,
            name=name.value if isinstance(name, ast.Constant) else None,
            given=_given(node, tree),
        )


def _own(module: str, tree: ast.Module) -> Iterator[ast.AST]:
    """Walk the module, but not the pages' `fetch_rows`, which passes on what it is told."""
    for statement in tree.body:
        if not (
            module == PAGES and isinstance(statement, ast.FunctionDef) and statement.name == "fetch_rows"
        ):
            yield from ast.walk(statement)


def _method(call: ast.Call) -> str | None:
    function = call.func
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return None
    return function.attr if function.value.id == "STATEMENTS" else None


def _given(call: ast.Call, tree: ast.Module) -> frozenset[str] | None:
    """Return the names of the call's keywords, those of `**function(…)` as that function writes them out."""
    names: set[str] = set()
    for keyword in call.keywords:
        more = {keyword.arg} if keyword.arg else _returned(keyword.value, tree)
        if more is None:
            return None
        names |= more
    return frozenset(names)


def _returned(value: ast.expr, tree: ast.Module) -> set[str] | None:
    """Return the keys of the dict that is all a function of the module consists of; None for anything else."""
    for function in tree.body:
        if (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Name)
            and isinstance(function, ast.FunctionDef)
            and function.name == value.func.id
            and len(function.body) == 1
            and isinstance(made := function.body[0], ast.Return)
            and isinstance(made.value, ast.Dict)
        ):
            return {key.value for key in made.value.keys if isinstance(key, ast.Constant)}
    return None


def _taken(module: str, tree: ast.Module) -> Iterator[str]:
    """Find what reaches for another module's statements, or gives its own away."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {id(call.func.value) for call in calls if isinstance(call.func, ast.Attribute)}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=names) if any(one.name == "STATEMENTS" for one in names):
                yield f"{module}:{node.lineno} imports statements"
            case ast.Attribute(attr="STATEMENTS"):
                yield f"{module}:{node.lineno} takes the statements of another module"
            case ast.Name(id="STATEMENTS", ctx=ast.Load()) if id(node) not in called:
                yield f"{module}:{node.lineno} gives its statements away"
            case ast.Call(func=ast.Name(id="Statements")) if ast.unparse(node) != "Statements(__name__)":
                yield f"{module}:{node.lineno} makes statements of another module"
            case _:
                pass


def _wrong(call: Call, statements: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    if call.name is None or call.given is None:
        yield f"{call.at} does not write out which statement it means, or what it is given"
        return
    text = statements.get(call.owner, {}).get(call.name)
    if text is None:
        yield f"{call.at}: {call.owner} has no statement {call.name}"
        return
    parameters = set(re.findall(r"%\((\w+)\)s", text))
    placeholders = {field for _, field, _, _ in Formatter().parse(text) if field is not None}
    if both := parameters & placeholders:
        yield f"{call.owner}: {call.name} has parameters and placeholders of one name: {sorted(both)}"
    if wrong := call.given ^ (parameters | placeholders):
        yield f"{call.at}: {call.name} and its call differ in {', '.join(sorted(wrong))}"


def _read() -> tuple[Files, Sources]:
    sources = {_module(path, ETL.parent): path.read_text() for path in ETL.rglob("*.py")}
    paths = [path for path in SQL_FOLDER.rglob("*.sql") if path not in NOT_OURS]
    files = {
        f"etl.{_module(path, SQL_FOLDER)}": path.read_text()
        for path in paths
        if path.parent.name != "migrations"
    }
    assert all(file_of(module).exists() for module in files)
    concerned = {name: text for name, text in sources.items() if "STATEMENTS" in text or PAGES in text}
    return files, {**dict.fromkeys(files.keys() & sources.keys(), ""), **concerned}


def _module(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts)


def test_each_statement_is_used_by_its_module_alone_with_exactly_its_parameters() -> None:
    files, sources = _read()
    assert sum(len(list(_named(text))) for text in files.values()) > 200
    assert breaches(files, sources) == []


def test_each_statement_is_named_once_in_its_file_and_says_what_it_does() -> None:
    files, _ = _read()
    for module, text in files.items():
        names = re.findall(r"^-- name: (\w+)\n(-- .+)?", text, flags=re.MULTILINE)
        assert text.startswith("-- name: ")
        assert len({name for name, _ in names}) == len(names), module
        assert all(comment for _, comment in names), module


OWNER = """
STATEMENTS = Statements(__name__)

def take(cursor, run):
    STATEMENTS.execute(cursor, "take", pipeline=run.pipeline, run=run.id)

def count(cursor, table):
    STATEMENTS.execute(cursor, "count", table=sql.Identifier(table), **_key(table))

def _key(table):
    return {"first": 1, "last": 2}
"""
SQL = """-- name: take
-- Takes the lease, of which 100%% is format('%%s').
UPDATE lease SET run = %(run)s WHERE pipeline = %(pipeline)s AND name ~ 'a{{1,2}}'

-- name: count
-- Counts.
SELECT count(*) FROM {table} WHERE number BETWEEN %(first)s AND %(last)s
"""


def test_what_is_right_is_no_breach() -> None:
    assert breaches({"etl.owner": SQL}, {"etl.owner": OWNER}) == []


@pytest.mark.parametrize(
    ("was", "planted", "told"),
    [
        (", run=run.id", "", "take and its call differ in run"),
        ("run=run.id", "run=run.id, who=1", "take and its call differ in who"),
        ('"last": 2', '"most": 2', "count and its call differ in last, most"),
        ("table=sql.Identifier(table), ", "", "count and its call differ in table"),
        ("pipeline=run.pipeline, run=run.id", "**values", "does not write out"),
        ('cursor, "take"', "cursor, name", "does not write out"),
        ('cursor, "take"', 'cursor, "give"', "etl.owner has no statement give"),
        ('STATEMENTS.execute(cursor, "take", pipeline=run.pipeline, run=run.id)', "pass", "take is not used"),
        ("Statements(__name__)", 'Statements("etl.other")', "makes statements of another module"),
        ("def _key", "def give():\n    return STATEMENTS\n\ndef _key", "gives its statements away"),
    ],
)
def test_a_planted_breach_is_found_in_the_module(was: str, planted: str, told: str) -> None:
    assert OWNER.count(was) == 1
    assert told in "\n".join(breaches({"etl.owner": SQL}, {"etl.owner": OWNER.replace(was, planted)}))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("from etl.owner import STATEMENTS", "etl.other:1 imports statements"),
        ("owner.STATEMENTS.execute(cursor, 'count')", "etl.other:1 takes the statements of another module"),
        ("STATEMENTS.execute(cursor, 'count')", "etl.other has no statement count"),
    ],
)
def test_a_planted_use_of_anothers_statement_is_found(source: str, told: str) -> None:
    assert told in "\n".join(breaches({"etl.owner": SQL}, {"etl.owner": OWNER, "etl.other": source}))


def test_a_file_of_no_module_and_a_name_of_both_kinds_are_found() -> None:
    assert "etl.gone has SQL and is no module" in breaches(
        {"etl.owner": SQL, "etl.gone": ""}, {"etl.owner": OWNER}
    )
    both = SQL.replace("%(last)s", "%(last)s AND %(table)s")
    assert "of one name: ['table']" in "\n".join(breaches({"etl.owner": both}, {"etl.owner": OWNER}))


def test_pages_name_the_statements_that_are_executed_for_them() -> None:
    records = {
        PAGES: "def fetch_rows(cursor, name, kind, /, **values):\n    STATEMENTS.execute(cursor, name, **values)"
    }
    page = f"from {PAGES} import fetch_rows\n\nfetch_rows(cursor, 'count', Row, table=1, first=1, last=2)"
    only = {PAGES: SQL.partition("\n\n")[2]}
    assert breaches(only, {**records, "etl.page": page}) == []
    assert breaches(only, {**records, "etl.page": page.replace(", first=1", "")}) == [
        "etl.page:3: count and its call differ in first"
    ]
