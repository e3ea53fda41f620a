"""Corrections of held rows: reads them from files, and gives the rows the values that they set.

What is corrected is read as landed JSON is, by the contract of docs/reading.md; what is not is as it was held.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from etl.common.errors import SetupError
from etl.common.number_ranges import MOST
from etl.common.record_bounds import DEFAULT, Bounds
from etl.common.wording import first_few, pluralize
from etl.sinks.warehouse.staging import plain_values
from etl.sources.json_records.lines import value_of
from etl.sources.json_records.values import Beyond, Convert, Members, Misfit, Number, converter, json_text

if TYPE_CHECKING:
    from etl.ledger.quarantine import HeldRow

log = logging.getLogger("sluice")

Corrections = Mapping[int, Mapping[str, Any]]  # quarantine id -> column -> value as in JSON
_REMEDY = "correct it in a file of corrections, as `sluice quarantine export` writes one"


def read_corrections(file: Path, bounds: Bounds = DEFAULT) -> dict[int, dict[str, Any]]:
    """Read columns to be set, by quarantine id, from a file of JSON Lines such as `export` writes.

    Raises SetupError where the file can't be read, and as `corrections_in` does.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")  # a Windows editor begins a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{file} can't be read: {error}", remedy="name a file of JSON Lines") from error
    return corrections_in(text, str(file), bounds)


def corrections_in(text: str, where: str, bounds: Bounds = DEFAULT) -> dict[int, dict[str, Any]]:
    """Read columns to be set, by quarantine id, from JSON Lines; `where` says in messages of what.

    A line without a row, as `export` writes one of a malformed record, corrects nothing and is left out. Raises
    SetupError where a line is no correction, or a row is corrected twice.
    """
    found: dict[int, dict[str, Any]] = {}
    without: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: a text may hold U+2028
        if not line.strip():
            continue
        quarantine_id, values = _correction(f"{where}, line {number}", line, bounds)
        if values is None:
            without.append(quarantine_id)
            continue
        if quarantine_id in found:
            raise SetupError(
                f"{where}, line {number}: row {quarantine_id} is corrected twice", remedy="keep one"
            )
        found[quarantine_id] = values
    if without:
        log.warning(
            "%s: %s left out, without a row to correct: number %s",
            where,
            pluralize(len(without), "line"),
            first_few(without),
        )
    return found


def _correction(where: str, line: str, bounds: Bounds) -> tuple[int, dict[str, Any] | None]:
    try:
        one = value_of(line, bounds)
    except Misfit as misfit:
        raise SetupError(f"{where}: {misfit}", remedy=_REMEDY) from None
    members = _once(where, one) if isinstance(one, Members) else {}
    number, values = members.get("quarantine_id"), members.get("row", False)
    if isinstance(number, Number) and number.isdecimal() and len(number) < 20 and 0 < int(number) <= MOST:
        if values is None:
            return int(number), None
        if isinstance(values, Members):
            return int(number), _once(where, values)
    raise SetupError(f'{where} is not {{"quarantine_id": 7, "row": {{"column": value}}}}', remedy=_REMEDY)


def _once(where: str, members: Members) -> dict[str, Any]:
    """Return the members by name; raise SetupError where one occurs twice."""
    if twice := [name for name, count in Counter(name for name, _ in members).items() if count > 1]:
        raise SetupError(f"{where}: {first_few(twice)} found twice", remedy="keep one")
    return dict(members)


def corrected_rows(
    rows: Sequence[HeldRow],
    corrections: Corrections,
    columns: pa.Schema,
    *,
    nested: Mapping[str, pa.DataType] = MappingProxyType({}),
    bounds: Bounds = DEFAULT,
) -> pa.Table:
    """Return the rows with the columns that their corrections set.

    `nested` are columns of JSON text, with the types that they are the text of; what is corrected of one is null there,
    and in a column of its type called as `beside_of` says. Raises SetupError, which names the row that does not fit.
    """
    given = [_in_json(one.quarantine_id, corrections.get(one.quarantine_id, {}), bounds) for one in rows]
    held = [_in_json(one.quarantine_id, one.values or {}, bounds) for one in rows]
    for one, change in zip(rows, given, strict=True):
        _require_columns(one, change, columns)
    arrays, beside = list[pa.Array](), dict[str, pa.Array]()
    for field in columns:
        cells = [
            _Cell(one.quarantine_id, change.get(field.name, was.get(field.name)), was.get(field.name))
            for one, change, was in zip(rows, given, held, strict=True)
        ]
        if field.name in nested and any(cell.changed for cell in cells):
            arrays.append(pa.array([None if cell.changed else cell.held for cell in cells], pa.string()))
            changed = [cell if cell.changed else _Cell(cell.row, None, None) for cell in cells]
            own = _column(field.name, nested[field.name], changed, bounds)
            if own.null_count < len(own):
                beside[beside_of(field.name)] = own
        else:
            arrays.append(_column(field.name, field.type, cells, bounds))
    table = pa.Table.from_arrays(arrays, schema=columns)
    for name, array in beside.items():
        table = table.append_column(name, array)
    return table


def beside_of(column: str) -> str:
    """Return what the column is called that has what is corrected of a nested one."""
    return f"_corrected_{column}"


class _Cell(NamedTuple):
    """One column of one row."""

    row: int  # its number
    value: Any
    held: Any

    @property
    def changed(self) -> bool:
        return bool(self.value != self.held)


def _in_json(row: int, values: Mapping[str, Any], bounds: Bounds) -> dict[str, Any]:
    """Return the values as the JSON reader has them, each number as it is written."""
    try:
        return {name: value_of(json_text(value), bounds) for name, value in values.items()}
    except Misfit as misfit:
        raise SetupError(f"Row {row}: {misfit}", remedy=_REMEDY) from None


def _require_columns(row: HeldRow, change: Mapping[str, Any], columns: pa.Schema) -> None:
    number = row.quarantine_id
    if row.row is None and (lacking := [name for name in columns.names if name not in change]):
        raise SetupError(
            f"Row {number} never was a row, and its correction lacks {', '.join(lacking)}",
            remedy="give each of its columns a value, null where it has none",
        )
    if unknown := sorted({*change, *(row.values or {})} - set(columns.names)):
        raise SetupError(
            f"Row {number} is given columns that the pipeline has not: {', '.join(unknown)}",
            remedy=f"its columns are {', '.join(columns.names)}",
        )


def _column(name: str, kind: pa.DataType, cells: Sequence[_Cell], bounds: Bounds) -> pa.Array:
    convert = _converter(kind, bounds)
    arrays = []
    for cell in cells:
        try:
            arrays.append(_array(cell, kind, convert))
        except Misfit as misfit:
            raise _refused(cell.row, misfit.within(name)) from None
    return pa.concat_arrays(arrays)


def _refused(row: int, misfit: Misfit) -> SetupError:
    return SetupError(f"Row {row}, column {misfit}", remedy=_REMEDY)


def _array(cell: _Cell, kind: pa.DataType, convert: Convert) -> pa.Array:
    try:
        return pa.array([None if cell.value is None else convert(cell.value)], kind)
    except Misfit:
        if not cell.changed and (moment := _moment_as_held(cell.value, kind)) is not None:
            return moment
        raise


def _converter(kind: pa.DataType, bounds: Bounds) -> Convert:
    """Return what reads a value that is not null: bytes in hexadecimal, as they are held; nested ones from text, too."""
    if pa.types.is_binary(kind):
        return _bytes
    convert = converter(kind, bounds)
    if convert is None:
        return _refuse
    return partial(_from_text, convert, bounds) if pa.types.is_nested(kind) else convert


def _bytes(value: Any) -> bytes:
    try:
        if type(value) is str:
            return bytes.fromhex(value)
    except ValueError:
        pass
    raise Misfit.of(value, "binary, as hexadecimal digits")


def _refuse(value: Any) -> Any:
    raise Misfit.of(value, "null: JSON has no values of its type")


def _from_text(convert: Convert, bounds: Bounds, value: Any) -> Any:
    if type(value) is str:
        try:
            value = value_of(value, bounds)
        except Beyond:
            raise
        except Misfit as misfit:
            raise Misfit.of(value, f"JSON text: {misfit.problem}") from None
    return None if value is None else convert(value)


def _moment_as_held(text: Any, kind: pa.DataType) -> pa.Array | None:
    """Read a moment as a held row has it, of whatever year; None where it is no such text."""
    if type(text) is not str or not pa.types.is_temporal(kind):
        return None
    unit: Any = "D" if pa.types.is_date32(kind) else kind.unit
    try:
        moment = np.datetime64(text.replace(" ", "T").removesuffix("Z"), unit).astype("int64").item()
        held = pa.array([moment], pa.int32() if unit == "D" else pa.int64()).view(kind)
    except (ValueError, OverflowError, pa.ArrowException):
        return None
    return held if plain_values(held) == [text] else None  # a year that is too far wraps
