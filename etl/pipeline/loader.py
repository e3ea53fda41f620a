"""Loads pipelines from their Python files.

Loading imports no pyspark, so that Airflow can do it often. Either every declaration asked for is right, or
one error names all that is wrong, by file and field.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from etl.common.errors import SetupError
from etl.common.wording import meant
from etl.pipeline import declaration
from etl.pipeline.checks import problems
from etl.pipeline.declaration import Pipeline


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One file's outcome: a pipeline, or what is wrong, or both."""

    file: Path
    pipeline: Pipeline | None
    wrong: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the pipeline's name; where the file can't be loaded, its own."""
        return self.pipeline.name if self.pipeline is not None else self.file.stem

    @property
    def right(self) -> Pipeline | None:
        """Return the pipeline where nothing is wrong with it."""
        return None if self.wrong else self.pipeline


def load_files(folders: Iterable[Path]) -> list[Loaded]:
    """Load every file of `folders`, each with all that is wrong with it: clashes with other files are so of either.

    A folder that is not there raises SetupError.
    """
    loaded = list(_load_all(folders))
    clashes = _clashes(loaded)
    return [
        dataclasses.replace(
            one,
            wrong=(
                *one.wrong,
                *(clash.removeprefix(f"{one.file}: ") for clash in clashes if str(one.file) in clash),
            ),
        )
        for one in loaded
    ]


def require_name(name: str, loaded: Iterable[Loaded], folders: Iterable[Path]) -> None:
    """Raise SetupError where none of the loaded files is the pipeline `name`."""
    loaded = list(loaded)
    if not any(one.name == name for one in loaded):
        raise _unknown(name, loaded, list(folders))


def load_pipelines(folders: Iterable[Path]) -> dict[str, Pipeline]:
    """Load every pipeline declared in `folders`, by name. Raises one SetupError with all that is wrong."""
    loaded = list(_load_all(folders))
    wrong = [f"{one.file}: {sentence}" for one in loaded for sentence in one.wrong]
    wrong += _clashes(loaded)
    if wrong:
        raise _refused(wrong)
    return {one.pipeline.name: one.pipeline for one in loaded if one.pipeline is not None}


def loadable(folders: Iterable[Path]) -> dict[str, Pipeline]:
    """Load the pipelines whose declarations are right, by name.

    What is wrong with others is for `load_pipelines`; a folder that is not there raises SetupError here, too.
    """
    return {one.name: one.right for one in load_files(folders) if one.right is not None}


def loadable_alone(name: str, folders: Iterable[Path]) -> dict[str, Pipeline]:
    """Load the pipeline `name` where its declaration is right, and no more files than it takes to find it.

    Files that have the name in their text come first. Whether another pipeline has the same name or table is not
    asked: that takes every file, and is for `load_pipeline`.
    """
    files = list(_files(folders))
    files.sort(key=lambda file: not _mentions(file, name))
    found = next((one for one in map(_load, files) if one.pipeline and one.pipeline.name == name), None)
    return {} if found is None or found.pipeline is None or found.wrong else {name: found.pipeline}


def _mentions(file: Path, name: str) -> bool:
    """Tell whether a file has a text in it; False for one that can't be read, which `_load` tells of."""
    with suppress(OSError):
        return name.encode() in file.read_bytes()
    return False


def load_pipeline(name: str, folders: Iterable[Path]) -> Pipeline:
    """Load the pipeline `name`. Raises SetupError when there is none, or its declaration is not right.

    Another pipeline's broken file is no reason to refuse this one.
    """
    folders = list(folders)
    declared = list(map(_declared, _files(folders)))
    tables = {table for one in declared if one.name == name for table in _tables(one)}
    near = [_checked(one) for one in declared if one.name == name or not tables.isdisjoint(_tables(one))]
    mine = [one for one in near if one.name == name]
    files = {one.file for one in mine}
    wrong = [f"{one.file}: {sentence}" for one in mine for sentence in one.wrong]
    wrong += [clash for clash in _clashes(near) if any(str(file) in clash for file in files)]
    if wrong:
        raise _refused(wrong)
    if mine and mine[0].pipeline is not None:
        return mine[0].pipeline
    raise _unknown(name, list(map(_checked, declared)), folders)


def file_of(name: str, folders: Iterable[Path]) -> Path | None:
    """Return the file that declares the pipeline, rightly or not; None where none does."""
    return next((one.file for one in _load_all(folders) if one.name == name), None)


def _refused(wrong: list[str]) -> SetupError:
    listed = "".join(f"\n  - {sentence}" for sentence in wrong)
    return SetupError(f"A pipeline's declaration has mistakes:{listed}", remedy="change these and run again")


def _unknown(name: str, loaded: list[Loaded], folders: list[Path]) -> SetupError:
    given: list[object] = [one.pipeline.name for one in loaded if one.pipeline is not None]
    names = sorted(name for name in given if isinstance(name, str))
    near = difflib.get_close_matches(name, names, n=3)
    where = ", ".join(str(folder) for folder in folders)
    broken = "".join(f"\n  - not loaded: {one.file}: {one.wrong[0]}" for one in loaded if one.wrong)
    remedy = f"did you mean {' or '.join(near)}?" if near else "take one of these, or set SLUICE_PIPELINES"
    known = ", ".join(names) or "none"
    return SetupError(f"No pipeline is called {name!r}; in {where} there are: {known}{broken}", remedy=remedy)


def _load_all(folders: Iterable[Path]) -> Iterator[Loaded]:
    return map(_load, _files(folders))


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield each file that is to declare a pipeline, once."""
    seen: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            remedy = "create it, or set SLUICE_PIPELINES to others"
            raise SetupError(f"The pipelines' folder {folder} is not there", remedy=remedy)
        for file in sorted(folder.glob("*.py")):
            if file.name.startswith("_") or file.resolve() in seen:
                continue
            seen.add(file.resolve())
            yield file


def _load(file: Path) -> Loaded:
    """Run the file at `file` and check what it declares."""
    return _checked(_declared(file))


def _declared(file: Path) -> Loaded:
    """Run the file at `file`, whose declaration is still to be checked."""
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
        early = _early_imports(tree)
        declared = _run(file, tree)
    except SyntaxError as error:
        return Loaded(file=file, pipeline=None, wrong=(f"line {error.lineno}: {error.msg}",))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's file may raise anything
        return Loaded(file=file, pipeline=None, wrong=(_raised(file, error),))
    if not isinstance(declared, Pipeline):
        return Loaded(file=file, pipeline=None, wrong=("declares no PIPELINE = Pipeline(…)",))
    return Loaded(file=file, pipeline=dataclasses.replace(declared, file=file), wrong=tuple(early))


def _checked(declared: Loaded) -> Loaded:
    """Return a declaration with all that is wrong with it."""
    if declared.pipeline is None:
        return declared
    try:
        mistakes = problems(declared.pipeline)
    except Exception as error:  # noqa: BLE001 - a field may have a value of any kind, and other files are to be loaded
        wrong = f"a field's value is of the wrong type: {error}"
        return Loaded(file=declared.file, pipeline=None, wrong=(wrong,))
    return dataclasses.replace(declared, wrong=(*declared.wrong, *mistakes))


def _tables(declared: Loaded) -> set[str]:
    """Return the tables that a declaration would own; none where it has no sink that could have them."""
    if declared.pipeline is None or not hasattr(declared.pipeline.sink, "table"):
        return set()
    names: tuple[object, ...] = (declared.pipeline.table, declared.pipeline.quarantine_table)
    return {name for name in names if isinstance(name, str)}  # a wrong one is told when its own is loaded


def _run(file: Path, tree: ast.Module) -> object:
    """Run the module at `file`, which was parsed to `tree`; return the value of its PIPELINE, None when it has none.

    Python's cache of compiled code is neither read nor written: it takes a file of the same size and second for the same.
    """
    name = f"_sluice_pipeline_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None:
        raise ImportError(f"{file} is no Python module")
    module = importlib.util.module_from_spec(spec)
    # Registered only while it runs: dataclasses look their module up, but a module that stays registered
    # would be pickled by name for the executors, which cannot import it.
    sys.modules[name] = module
    try:
        exec(compile(tree, str(file), "exec", dont_inherit=True), vars(module))  # noqa: S102 - it is a user's code
    finally:
        del sys.modules[name]
    return getattr(module, "PIPELINE", None)


def _early_imports(tree: ast.Module) -> list[str]:
    """Name the imports of pyspark at a file's top, a sentence each.

    One would cost every reader of the declaration seconds.
    """
    mistakes = []
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        if any(name.partition(".")[0] == "pyspark" for name in names):
            mistakes.append(f"line {node.lineno}: imports pyspark at its top; import it inside the transform")
    return mistakes


def _raised(file: Path, error: BaseException) -> str:
    """Tell where in `file` an error came up, and what it says."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = f"line {frames[-1].lineno}: " if frames else ""
    return f"{line}{_call_in_words(error) or f'{type(error).__name__}: {error}'}"


_QUOTED = r"'\w+'"
_CALL = re.compile(r"(\w+)(?:\.__init__)?\(\) (.*)", re.DOTALL)


def _call_in_words(error: BaseException) -> str | None:
    """Say what is wrong with the call of a class or function of `etl.pipeline`; None where it is another error."""
    found = _CALL.match(str(error)) if isinstance(error, TypeError) else None
    called = getattr(declaration, found[1], None) if found else None
    if found is None or called is None or called.__module__ != declaration.__name__:
        return None
    name, told = found[1], found[2]
    fields = [field for field in inspect.signature(called).parameters.values() if field.name != "file"]
    if unknown := re.match(r"got an unexpected keyword argument '(\w+)'", told):
        near = meant(unknown[1], [field.name for field in fields])
        known = near or f"; it has {', '.join(field.name for field in fields)}"
        return f"{name} has no field {unknown[1]!r}{known}"
    if told.startswith("missing "):
        return f"{name} lacks {' and '.join(re.findall(_QUOTED, told))}"
    if told.startswith("takes "):
        bare = [field.name for field in fields if field.kind is not field.KEYWORD_ONLY]
        but = f" but {' and '.join(bare)}" if bare else ""
        named = [field.name for field in fields if field.kind is field.KEYWORD_ONLY]
        such = f" by name, such as {named[-1]}=…" if named else ""
        return (
            f"{name} takes all its fields{but}{such}" if such else f"{name} takes {' and '.join(bare)} alone"
        )
    return None


def _clashes(loaded: list[Loaded]) -> list[str]:
    """Tell which names are declared twice, and which tables two pipelines would own, a sentence each."""
    clashes = []
    names: dict[str, Path] = {}
    tables: dict[str, tuple[str, Path]] = {}
    for one in loaded:
        if one.pipeline is None or one.wrong:
            continue
        name, file = one.pipeline.name, one.file
        if name in names:
            clashes.append(f"{file}: name: {name!r} is declared in {names[name]} too")
            continue
        names[name] = file
        for table in (one.pipeline.table, one.pipeline.quarantine_table):
            owner, other = tables.setdefault(table, (name, file))
            if owner != name:
                clashes.append(f"{file}: sink: table {table} belongs to pipeline {owner!r} ({other}) already")
    return clashes
