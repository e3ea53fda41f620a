"""`sluice docs`: builds Great Expectations' Data Docs of delivered batches, without anything that runs.

The pages are rendered by GX's own renderer and templates, which write some values raw (1.24.1). So no value
reaches them as it is: every character that could mean something to HTML, Markdown or a template goes through
as a character of its own in Unicode's private use area, and becomes an entity when the page is finished. The
pages have no script, load nothing from anywhere, and forbid both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etl.common.database import transaction
from etl.common.errors import SetupError
from etl.common.wording import pluralize
from etl.ledger.deliveries import inputs_of
from etl.operations.suites.stored_batches import (
    LAST,
    StoredBatch,
    releases_since,
    report_of,
    stored_batches,
)
from etl.pipeline import Pipeline

if TYPE_CHECKING:
    from etl.runs.workspace import Workspace

PAGES = Path(__file__).parent / "data_docs_pages"
PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _.:+-")
NOTES = frozenset({"notes", "description"})  # GX takes them for Markdown
PRIVATE = 0xE000  # the character in place of the ASCII character n is PRIVATE + n
ASCII = range(128)
BLANKS = "\t\n\r"

# A private character that is in the data would come out as something else: it is shown as unknown.
_UNKNOWN = {PRIVATE + n: "\ufffd" for n in ASCII}
_HIDE = _UNKNOWN | {n: chr(PRIVATE + n) for n in ASCII if chr(n) not in PLAIN}
_HIDE_ALL = _UNKNOWN | {n: chr(PRIVATE + n) for n in ASCII if not chr(n).isalnum() and n != ord(" ")}
_SHOW = {PRIVATE + n: f"&#{n};" if n >= ord(" ") or chr(n) in BLANKS else f"&#92;x{n:02x}" for n in ASCII}
_WRITTEN_OUT = re.compile(r"\\ue0([0-7][0-9a-f])")  # where GX shows the repr of a text
_SUITE_LINK = re.compile(r'href="(?:\.\./)+expectations/[^"]*"')  # where GX would have the suite's page


@dataclass(frozen=True, kw_only=True)
class DocsPage:
    """What the history has of a batch."""

    batch: StoredBatch
    suite: str  # the name of the pipeline's suite
    table: str  # that it was delivered to
    report: Mapping[str, Any]  # as it is in sluice.quality
    inputs: Sequence[str]

    @property
    def file(self) -> str:
        return f"delivery-{self.batch.delivery_id}.html"

    @property
    def suite_file(self) -> str:
        return f"suite-{self.batch.suite_digest[:12]}.html"

    @property
    def failed(self) -> int:
        return sum(not result["success"] for result in self.report["results"])

    def content(self) -> dict[str, Any]:
        """Return the report in the form in which GX keeps a validation's result."""
        import great_expectations

        results, at = self.report["results"], self.batch.committed_at.isoformat()
        passed = len(results) - self.failed
        return {
            "success": self.report["success"],
            "results": results,
            "suite_name": self.suite,
            "suite_parameters": {},
            "statistics": {
                "evaluated_expectations": len(results),
                "successful_expectations": passed,
                "unsuccessful_expectations": self.failed,
                "success_percent": 100 * passed / len(results) if results else None,
            },
            "meta": {
                "great_expectations_version": great_expectations.__version__,
                "run_id": {"run_name": self.batch.title, "run_time": at},
                "validation_time": at,
                "batch_spec": {
                    "data_asset_name": self.table,
                    "delivery": self.batch.delivery_id,
                    "stream": self.batch.stream_id,
                    **({"batch": self.batch.batch_id} if self.batch.kind == "stream" else {}),
                    "suite_digest": self.batch.suite_digest,
                    "inputs": list(self.inputs),
                },
            },
            "id": None,
        }


def build_docs(workspace: Workspace, pipeline: Pipeline, folder: Path, *, last: int = LAST) -> list[DocsPage]:
    """Write a page for each of the last batches and each of their suites, and `index.html`; no other file is touched."""
    docs = history(workspace, pipeline, last=last)
    releases = releases_since(workspace.services.postgres, pipeline, docs[0].batch) if docs else 0
    pages = {"index.html": _index(pipeline, docs, releases)}
    for page in docs:
        content = _hidden(_with_plain_conditions(page.content()))
        pages[page.file] = _validation_page(content, page.suite_file)
        if page.suite_file not in pages:
            pages[page.suite_file] = _suite_page(content)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            # half of a surrogate pair, which JSON may hold, becomes a reference that no browser takes for more
            (folder / name).write_bytes(text.encode(errors="xmlcharrefreplace"))
    except OSError as error:
        raise SetupError(f"{folder} can't be written: {error}", remedy="name another --output") from error
    return docs


def history(workspace: Workspace, pipeline: Pipeline, *, last: int = LAST) -> list[DocsPage]:
    """Return those of the last live deliveries whose report is kept, oldest first."""
    dsn, name = workspace.services.postgres, pipeline.suite or pipeline.name
    pages = []
    for batch in stored_batches(dsn, pipeline, last):
        with transaction(dsn) as cursor:
            report = report_of(cursor, batch)
            inputs = [one.path for one in inputs_of(cursor, batch.delivery_id)]
        if report is not None:
            pages.append(
                DocsPage(batch=batch, suite=name, table=pipeline.table, report=report, inputs=inputs)
            )
    return pages


def suite_result(content: Mapping[str, Any]) -> Any:
    """Load GX's own ExpectationSuiteValidationResult as GX loads one that it wrote."""
    from great_expectations.core.expectation_validation_result import (
        expectationSuiteValidationResultSchema,
    )

    from etl.quality.gx import registered

    registered()
    return expectationSuiteValidationResultSchema.load(dict(content))


def _validation_page(hidden: Mapping[str, Any], suite_file: str) -> str:
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer

    document = ValidationResultsPageRenderer(run_info_at_end=True).render(suite_result(hidden))
    return _shown(_SUITE_LINK.sub(f'href="{suite_file}"', _gx_view().render(document)))


def _suite_page(hidden: Mapping[str, Any]) -> str:
    """Render GX's page of the suite from the expectations that the results carry."""
    from great_expectations.core import ExpectationSuite
    from great_expectations.render.renderer.page_renderer import ExpectationSuitePageRenderer

    expectations = [dict(result["expectation_config"]) for result in hidden["results"]]
    suite = ExpectationSuite(name=hidden["suite_name"], expectations=expectations)
    renderer: Any = ExpectationSuitePageRenderer()
    return _shown(_gx_view().render(renderer.render(suite)))


def _index(pipeline: Pipeline, pages: Sequence[DocsPage], releases: int) -> str:
    from jinja2 import Environment, FileSystemLoader

    own = Environment(loader=FileSystemLoader(PAGES), autoescape=True)
    own.filters["pluralize"] = pluralize
    return own.get_template("index.j2").render(pipeline=pipeline.name, pages=pages[::-1], releases=releases)


def _with_plain_conditions(content: dict[str, Any]) -> dict[str, Any]:
    """Write row conditions as text: GX reads an operator's sign, which is to be hidden, as more than text."""
    from great_expectations.expectations.row_conditions import deserialize_row_condition

    for result in content["results"]:
        kwargs = result["expectation_config"]["kwargs"]
        if isinstance(condition := kwargs.get("row_condition"), Mapping):
            read = deserialize_row_condition(condition)
            kwargs["row_condition"] = getattr(read, "pass_through_filter", None) or repr(read)
            kwargs["condition_parser"] = "spark"
    return content


def _hidden(content: Any, table: Mapping[int, str] = _HIDE) -> Any:
    """Return the content with every character hidden that could be more than text, in keys as well."""
    if isinstance(content, str):
        return content.translate(table)
    if isinstance(content, Mapping):
        return {
            key.translate(_HIDE): _hidden(value, _HIDE_ALL if key in NOTES else table)
            for key, value in content.items()
        }
    if isinstance(content, list):
        return [_hidden(one, table) for one in content]
    return content


def _shown(page: str) -> str:
    """Return the page with what was hidden as HTML's character references."""
    whole = _WRITTEN_OUT.sub(lambda escape: chr(PRIVATE + int(escape[1], 16)), page)
    return whole.translate(_SHOW)


@cache
def _gx_view() -> Any:
    """Return GX's view without its templates that have scripts or load from other hosts.

    In their place are ours, or empty ones.
    """
    from great_expectations.render.view.view import DefaultJinjaPageView
    from jinja2 import ChoiceLoader, DictLoader, FileSystemLoader

    view = DefaultJinjaPageView()
    theirs = view.env.loader
    assert theirs is not None
    nothing = DictLoader({"graph.j2": "", "bootstrap_table.j2": "", "tabs.j2": ""})
    view.env.loader = ChoiceLoader([FileSystemLoader(PAGES), nothing, theirs])
    return view
