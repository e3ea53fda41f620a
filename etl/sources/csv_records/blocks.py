"""Reads many CSV records at once: parts those that Arrow's parser knows by it, and the others by `Dialect.split`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from etl.common.record_bounds import DEFAULT, Bounds
from etl.common.record_columns import HELD_UNKNOWN, MALFORMED_COLUMN, UNKNOWN
from etl.common.wording import pluralize
from etl.sources.counts import Drift
from etl.sources.csv_records.columns import Column, without_nulls
from etl.sources.csv_records.dialect import Dialect
from etl.sources.csv_records.header import Layout
from etl.sources.json_records.blocks import BESIDE, joined
from etl.sources.json_records.moments import flags
from etl.sources.json_records.values import Beyond, Members, Misfit, json_text


@dataclass(frozen=True, kw_only=True)
class CsvReader:
    """Reads records into rows of one schema, each beside the text of a malformed one and what is wrong with it.

    A last column UNKNOWN of the schema takes the columns that the others do not name.
    """

    schema: pa.Schema
    dialect: Dialect
    holds_unknown: bool = False  # such columns make a record malformed
    bounds: Bounds = DEFAULT  # what is beyond them is malformed, too

    def read_headless(self, records: pa.Array, drift: Drift | None = None) -> pa.RecordBatch:
        """Read records whose values are those of the declared columns, in their order."""
        return self.read(records, Layout.of_schema(self.names), drift)

    @cached_property
    def names(self) -> list[str]:
        """Return the names of the declared columns."""
        return [column.field.name for column in self._columns]

    def read(self, records: pa.Array, layout: Layout, drift: Drift | None = None) -> pa.RecordBatch:
        """Read records (binary) into as many rows, in their order: the schema's columns and those of BESIDE.

        `drift` counts what the layout has beyond the schema, and what it lacks.
        """
        texts, misfits = self._decoded(records)
        beyond = [position for _, position in layout.unknown]
        wanted = sorted({position for position in layout.positions if position is not None} | set(beyond))
        parted = dict(zip(wanted, self._parted(texts, layout, wanted, misfits), strict=True))
        columns = []
        for column, position in zip(self._columns, layout.positions, strict=True):
            if position is None:
                columns.append(pa.nulls(len(records), column.field.type))
                continue
            values, wrong = column.read(parted[position])
            columns.append(values)
            misfits = {**wrong, **misfits}
        unknown = [(name, without_nulls(parted[position], self.dialect)) for name, position in layout.unknown]
        for name, values in reversed(unknown) if self.holds_unknown else ():
            held = Misfit(HELD_UNKNOWN, name)
            misfits = {**misfits, **dict.fromkeys(np.flatnonzero(values.is_valid()).tolist(), held)}
        if UNKNOWN in self.schema.names:
            columns.append(_kept(unknown, len(records)))
        rows = self._rows(columns, records, misfits)
        if drift is not None and layout.drifts:
            good = pc.is_null(rows[MALFORMED_COLUMN])
            for name, values in unknown:
                drift.unknown[name] += pc.and_(good, values.is_valid()).true_count
            drift.missing.update(dict.fromkeys(layout.missing, good.true_count))
        return rows

    def _rows(
        self, columns: Sequence[pa.Array], records: pa.Array, misfits: dict[int, Misfit]
    ) -> pa.RecordBatch:
        """Put a malformed record's text and detail beside its row, which then is of nulls."""
        beside = [pa.nulls(len(records), kind) for kind in BESIDE.types]
        if misfits:
            numbers = sorted(misfits)
            mask = np.zeros(len(records), np.bool_)
            mask[numbers] = True
            raw = [
                self.bounds.text(one, self._encoding) for one in records.take(pa.array(numbers)).to_pylist()
            ]
            details = [str(misfits[number]) for number in numbers]
            held = pa.array(mask)
            columns = [pc.if_else(held, None, column) for column in columns]
            beside = [
                pc.replace_with_mask(nothing, held, pa.array(some, pa.string()))
                for nothing, some in zip(beside, (raw, details), strict=True)
            ]
        return pa.RecordBatch.from_arrays([*columns, *beside], schema=pa.schema([*self.schema, *BESIDE]))

    @property
    def _encoding(self) -> str:
        """Return the encoding of records; those of a whole file were decoded with it."""
        return "utf-8" if self.dialect.whole_files else self.dialect.encoding

    @cached_property
    def _columns(self) -> list[Column]:
        declared = [field for field in self.schema if field.name != UNKNOWN]
        return [Column(field=field, dialect=self.dialect, bounds=self.bounds) for field in declared]

    def _decoded(self, records: pa.Array) -> tuple[pa.Array, dict[int, Misfit]]:
        """Decode records; one that is too long, or not of the encoding, is null."""
        records, misfits = self._not_too_long(records)
        if self._encoding == "utf-8" and (texts := _as_utf8(records)) is not None:
            return texts, misfits
        found: list[str | None] = []
        for number, record in enumerate(records.to_pylist()):
            try:
                found.append(None if record is None else record.decode(self._encoding))
            except UnicodeDecodeError as error:
                found.append(None)
                misfits[number] = Misfit.of_bytes(error, self.dialect.encoding)
        return pa.array(found, pa.string()), misfits

    def _not_too_long(self, records: pa.Array) -> tuple[pa.Array, dict[int, Misfit]]:
        """Put null in the place of each record that is too long."""
        lengths = pc.binary_length(records)
        long = flags(pc.greater(lengths, self.bounds.record_bytes))
        if not long.any():
            return records, {}
        beyond: dict[int, Misfit] = {
            number: Beyond(
                self.bounds, "record_bytes", f"{pluralize(lengths[number].as_py(), 'byte')} or more"
            )
            for number in np.flatnonzero(long).tolist()
        }
        return pc.if_else(pa.array(long), None, records), beyond

    def _parted(
        self, texts: pa.Array, layout: Layout, wanted: Sequence[int], misfits: dict[int, Misfit]
    ) -> Iterator[pa.Array]:
        """Part records; yield the values at each of the `wanted` positions, and add to `misfits` what can't be parted."""
        signed = self._with_one_sign(texts)
        plain = self._plain(signed, layout.width)
        if plain.all():
            return iter(self._parse(signed, layout.width, wanted))
        nothing = self.dialect.of_one_sign.sep * (layout.width - 1)
        parsed = [pa.nulls(len(texts), pa.string()) for _ in wanted]
        if plain.any():
            parsed = self._parse(pc.if_else(pa.array(plain), signed, nothing), layout.width, wanted)
        rows, good = [], np.zeros(len(texts), np.bool_)
        left = np.flatnonzero(~plain)
        for number, text in zip(left.tolist(), texts.take(pa.array(left)).to_pylist(), strict=True):
            try:
                values = None if text is None else self._split(text, layout)
            except Misfit as misfit:
                misfits[number] = misfit
                continue
            if values is not None:
                rows.append([values[position] for position in wanted])
                good[number] = True
        if not rows:
            return iter(parsed)
        return (
            pc.replace_with_mask(column, pa.array(good), pa.array([row[at] for row in rows], pa.string()))
            for at, column in enumerate(parsed)
        )

    def _split(self, text: str, layout: Layout) -> list[str]:
        values = self.dialect.split(text, self.bounds.record_fields)
        if len(values) > self.bounds.record_fields:
            raise Beyond(self.bounds, "record_fields", f"{pluralize(len(values), 'field')} or more")
        if len(values) != layout.width:
            of = " of" if len(values) < layout.width else " fields, wanted"
            raise Misfit(f"found {len(values):,}{of} {layout.width:,}" + (" fields" if of == " of" else ""))
        return values

    def _with_one_sign(self, texts: pa.Array) -> pa.Array:
        """Put one character for a separator of several, within quotes too; null where a record has it already."""
        sep = self.dialect.of_one_sign.sep
        if sep == self.dialect.sep:
            return texts
        free = pc.invert(pc.match_substring(texts, sep))
        return pc.if_else(free, pc.replace_substring(texts, self.dialect.sep, sep), None)

    def _plain(self, texts: pa.Array, width: int) -> np.ndarray:
        """Tell which records Arrow's parser parts into so many values, as `Dialect.split` does."""
        dialect = self.dialect.of_one_sign
        if not dialect.is_plain or width > self.bounds.record_fields:
            return np.zeros(len(texts), np.bool_)
        fits = pc.invert(pc.starts_with(texts, "\ufeff"))  # which it takes off the first
        if dialect.line_sep:  # not the line break that it ends records at
            fits = pc.and_not(fits, pc.match_substring_regex(texts, r"[\r\n]"))
        plain = flags(pc.and_(fits, pc.equal(pc.count_substring(texts, dialect.sep), width - 1)))
        if dialect.quote and (quoted := flags(pc.match_substring(texts, dialect.quote))).any():
            some = texts.filter(pa.array(quoted))
            bare = pc.replace_substring_regex(some, dialect.in_quotes, "")
            counted = pc.equal(pc.count_substring(bare, dialect.sep), width - 1)
            written = pc.and_(pc.match_substring_regex(some, dialect.plainly_quoted), counted)
            plain[quoted] = flags(pc.and_(fits.filter(pa.array(quoted)), written))
        return plain

    def _parse(self, texts: pa.Array, width: int, wanted: Sequence[int]) -> list[pa.Array]:
        if not len(texts):
            return [pa.array([], pa.string()) for _ in wanted]
        dialect = self.dialect.of_one_sign
        # A last record of nothing is one where its line has an end.
        text = joined(pa.concat_arrays([texts, pa.array([""])]) if width == 1 else texts)
        names = [str(position) for position in range(width)]
        found = pcsv.read_csv(
            pa.BufferReader(text),
            pcsv.ReadOptions(use_threads=False, block_size=text.size + 1, column_names=names),
            pcsv.ParseOptions(
                delimiter=dialect.sep,
                quote_char=dialect.quote or False,
                newlines_in_values=dialect.multiline,
                ignore_empty_lines=False,
            ),
            pcsv.ConvertOptions(
                check_utf8=False,
                column_types={name: pa.string() for name in names},
                include_columns=[str(position) for position in wanted],
            ),
        )
        assert found.num_rows == len(texts), "each record is one row"
        columns = [column.combine_chunks() for column in found.columns]
        if dialect.sep == self.dialect.sep:
            return columns
        return [pc.replace_substring(column, dialect.sep, self.dialect.sep) for column in columns]


def _as_utf8(records: pa.Array) -> pa.Array | None:
    """Return records as texts; None where one is no UTF-8."""
    try:
        return records.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _kept(unknown: Sequence[tuple[str, pa.Array]], records: int) -> pa.Array:
    """Return what each record has in unknown columns, as JSON; null where that is nothing."""
    rows = zip(*(texts.to_pylist() for _, texts in unknown), strict=True) if unknown else [()] * records
    names = [name for name, _ in unknown]
    members = (
        Members((name, text) for name, text in zip(names, row, strict=True) if text is not None)
        for row in rows
    )
    return pa.array([json_text(some) if some else None for some in members], pa.string())
