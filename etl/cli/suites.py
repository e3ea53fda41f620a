"""`sluice try`, `whatif`, `suggest`, `docs`, `columns` and `train`: suites, metrics and models of delivered batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.box import SIMPLE
from rich.table import Table

from etl.cli.shared import (
    DONE_SO_FAR,
    AsJson,
    PipelineName,
    err,
    open_declared,
    out,
    print_json,
    print_result,
    require_new,
    result_to_stdout,
    shown,
    shown_lines,
    who,
    write_output,
)
from etl.common.errors import ContractBroken, SetupError
from etl.common.number_ranges import WIDEST
from etl.common.wording import pluralize
from etl.pipeline.intervals import moment
from etl.spark.signals import leaves

if TYPE_CHECKING:
    from etl.operations.suites.try_out import Tried
    from etl.quality.history import By
    from etl.quality.metrics import ColumnMetrics


def train(name: PipelineName, as_json: AsJson = False) -> None:
    """Fit the pipeline's models to delivered rows, and report how good they are; its next batch scores with them.

    Where neither the rows nor the declaration have changed, the version in force stays.
    """
    from etl.operations.models.train import train as train_pipeline

    leaves(DONE_SO_FAR)
    workspace, pipeline = open_declared(name)
    versions = train_pipeline(workspace, pipeline, who=who())
    if as_json:
        print_json([one.json() for one in versions])
        return
    for one in versions:
        report = one.report
        done = "made now" if one.new else "in force; its rows and declaration have not changed since"
        out.print(shown(f"{name}: model {report['model']}, version {one.version}, {done}"))
        _show(report)
        out.print(shown(f"  {one.location}"))
    out.print(f"next: `sluice run {name}`")


def _show(report: Mapping[str, Any]) -> None:
    held, labels = report["held_out"], report["held_out"]["labels"]
    table = Table("", "", box=SIMPLE, show_header=False)
    lines = {
        "learned from": f"{report['rows_fitted']:,} of {pluralize(report['rows_there'], 'row')} of {report['trained_on']}",
        "lacking a value": f"{report['rows_without']:,} of {pluralize(report['rows_drawn'], 'row')} drawn",
        **{
            feature: f"{one['least']:g} to {one['greatest']:g}, median {one['median']:g}"
            for feature, one in report["features"].items()
        },
        "threshold": f"{report['threshold']:.4f}",
        "held out": f"{pluralize(held['rows'], 'row')}, {held['flagged']:,} of them above the threshold",
        "their scores": ", ".join(f"{name} {score:.4f}" for name, score in held["scores"].items()),
    }
    if labels:
        lines["known anomalies"] = (
            f"{labels['anomalies']:,} of {pluralize(labels['rows'], 'row')} with a label"
        )
        lines["precision"] = _share(labels["precision"], labels["both"], labels["flagged"], "flagged")
        lines["recall"] = _share(labels["recall"], labels["both"], labels["anomalies"], "anomalies")
    for title, text in lines.items():
        table.add_row(shown(title), shown(text))
    out.print(table)


def _share(share: float | None, part: int, whole: int, noun: str) -> str:
    return f"none {noun}" if share is None else f"{share:.3f} ({part:,} of {whole:,} {noun})"


VALUE_WIDTH = 14  # characters of a row's values at least, with what separates them
Last = Annotated[int, typer.Option(metavar="N", min=1, max=WIDEST, help="How many of the newest batches.")]


def try_(
    name: PipelineName,
    files: Annotated[list[str], typer.Option("--input", metavar="FILE", help="A file to read; repeatable.")],
    rows: Annotated[int, typer.Option(min=0, max=WIDEST, help="How many rows of each kind are shown.")] = 3,
    plan: Annotated[bool, typer.Option("--plan", help="Show Spark's plan of the transform as well.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the transform and the suite over some files as one batch, and show what a run would do; nothing is written.

    Exit 3 where the suite would stop the batch.
    """
    from etl.operations.suites.try_out import try_out

    workspace, pipeline = open_declared(name, begins=True)
    tried = try_out(workspace, pipeline, files, most=rows)
    if as_json:
        print_json(tried.json())
    else:
        show(tried, plan=plan)
    if tried.stops:
        raise typer.Exit(ContractBroken.exit_code)


def show(tried: Tried, *, plan: bool) -> None:
    """Print for people what `sluice try` found, with Spark's plan if `plan` is set."""
    files, held = len(tried.files), tried.held + tried.malformed
    out.print(
        f"{tried.pipeline}: {pluralize(files, 'file')}; {pluralize(tried.delivered, 'row')} delivered, {held:,} held"
    )
    named = list(tried.columns.items())
    _upright("delivered", named, tried.rows)
    bad = [("; ".join(reasons), *row) for reasons, row in tried.held_rows]
    if bad:
        _upright("held", [("reasons", ""), *named], bad)
    malformed = [(raw, file, detail or "") for raw, file, detail in tried.malformed_records]
    _table("held as malformed", ["record", "file", "detail"], malformed)
    rules = [
        (
            "passed" if one.success else "failed",
            one.reason,
            str(one.severity),
            "" if one.unexpected_count is None else f"{one.unexpected_count:,} of {one.element_count:,}",
        )
        for one in tried.verdict.results
    ]
    _table("rules", ["", "rule", "severity", "rows that break it"], rules)
    if plan:
        out.print(tried.plan)
    for stop in tried.stops:
        out.print(f"a run would stop here: {stop}")


def _upright(title: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]]) -> None:
    """Print a line for each column: its name and type, then its value in as many rows as the width has room for.

    The other rows follow in tables of their own. Without a row these are the names and types alone.
    """
    beside = max(1, out.width // VALUE_WIDTH - len(columns[0]))
    for first in range(0, len(rows) or 1, beside):
        some = rows[first : first + beside]
        of = f", rows {first + 1} to {first + len(some)} of {len(rows)}" if len(rows) > beside else ""
        lines = [(*column, *(row[index] for row in some)) for index, column in enumerate(columns)]
        _table(f"{title}{of}", ["column", "type"], lines)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for name in columns:
        table.add_column(shown(name), overflow="fold")
    for _ in rows[0][len(columns) :]:
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*(shown("null" if value is None else value) for value in row))
    out.print(table)


def whatif(
    name: PipelineName,
    suite: Annotated[Path, typer.Option(metavar="FILE", help="The suite to try.")],
    last: Last = 20,
    as_json: AsJson = False,
) -> None:
    """Show how a changed suite would have judged the last batches; it delivers and holds nothing."""
    from etl.operations.suites.what_if import what_if

    workspace, pipeline = open_declared(name)
    report = what_if(workspace, pipeline, suite, last=last)
    if as_json:
        print_json(report.json())
        return
    for line in report.lines():
        out.print(line)


def suggest(
    name: PipelineName,
    last: Last = 20,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to; standard output by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the schema with the fields that it does not name yet.")
    ] = False,
) -> None:
    """Draft a suite from the last batches, each expectation with its evidence in its notes."""
    from etl.operations.suites.suggest import suggest as draw

    if schema:
        if output is not None:
            raise typer.BadParameter("--schema prints a line for the declaration, and takes no --output")
        _suggest_schema(name, last)
        return
    require_new(output, force=force)
    result_to_stdout(output is None)
    workspace, pipeline = open_declared(name)
    draft = draw(workspace, pipeline, last=last)
    if output is None:
        print_result(draft.text)
        return
    write_output(draft.text, output, force=force)
    rules = len(draft.suite["expectations"])
    out.print(
        f"{pluralize(rules, 'expectation')} from {pluralize(draft.rows, 'row')} of"
        f" {pluralize(draft.batches, 'batch', 'batches')} in {output}"
    )
    out.print(f"next: `sluice whatif {name} --suite {output}`")


def _suggest_schema(name: str, last: int) -> None:
    from etl.operations.suites.wider_schema import wider_schema

    result_to_stdout(True)
    workspace, pipeline = open_declared(name)
    wider = wider_schema(workspace, pipeline, last=last)
    for line in wider.notes:
        err.print(line)
    print_result(shown_lines(wider.schema).plain)


def columns(
    name: PipelineName,
    since: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="Batches delivered from then on.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="MOMENT", help="And before then.")] = None,
    by: Annotated[
        str, typer.Option(metavar="all|month|day|batch", help="One line for each of these spans.")
    ] = "all",
    as_json: AsJson = False,
) -> None:
    """Show what the columns looked like over any span of batches, from the sketches kept with each; no row is read."""
    from etl.quality.history import spans

    if by not in ("all", "month", "day", "batch"):
        raise SetupError(f"--by {by} is not known", remedy="--by all, month, day or batch")
    first = moment("--since", since) if since else None
    end = moment("--until", until) if until else None
    workspace, pipeline = open_declared(name)
    histories = spans(workspace.services.postgres, pipeline, since=first, until=end, by=cast("By", by))
    if as_json:
        print_json([span.json() for span in histories])
        return
    if not pipeline.metrics:
        err.print(f"{name} declares no `metrics`: name the columns there whose figures are to be kept")
    for span in histories:
        heading = f"{span.start:%Y-%m-%d %H:%M}" if span.start else name
        out.print(f"{heading}   {pluralize(span.batches, 'batch', 'batches')}")
        for one in span.columns:
            out.print(f"  {one.column:<24} {_said(one)}")


def _said(one: ColumnMetrics) -> str:
    """Write a column's figures in one line."""
    said = [pluralize(one.rows, "row"), f"{one.null_share or 0:.2%} null"]
    if (distinct := one.distinct_estimate()) is not None:
        said.append(f"about {distinct:,.0f} distinct")
    if one.mean is not None:
        said.append(
            f"{one.minimum:,.6g} to {one.maximum:,.6g}, mean {one.mean:,.6g} ± {one.deviation or 0:,.3g}"
        )
    if (median := one.quantile(0.5)) is not None:
        low, high = one.quantile(0.05), one.quantile(0.95)
        said.append(f"5 % below {low:,.6g}, half below {median:,.6g}, 95 % below {high:,.6g}")
    if one.latest is not None:
        said.append(f"{one.earliest:%Y-%m-%d %H:%M} to {one.latest:%Y-%m-%d %H:%M} UTC")
    return ", ".join(said)


def docs(
    name: PipelineName,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to; below SLUICE_HOME by default.")
    ] = None,
    last: Last = 20,
) -> None:
    """Build Great Expectations' Data Docs of the last batches: static pages without scripts."""
    from etl.operations.suites.data_docs import build_docs

    leaves(DONE_SO_FAR)
    workspace, pipeline = open_declared(name)
    folder = output or Path(workspace.settings.home) / "docs" / name
    pages = build_docs(workspace, pipeline, folder, last=last)
    out.print(f"{pluralize(len(pages), 'batch', 'batches')} in {folder / 'index.html'}")
