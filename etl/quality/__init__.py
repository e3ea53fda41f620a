"""A suite judges a batch in the pass that writes it, and its verdict is Great Expectations' own.

`compile_suite` turns a suite into flag columns and aggregates of the batch frame, `judge` turns what the
stage counted back into GX's results; what can't be had that way, `evaluate_elsewhere` leaves to GX on the
staged rows.
"""

from __future__ import annotations

from etl.quality.alone import require_evaluable
from etl.quality.compile import CompiledSuite, compile_suite
from etl.quality.elsewhere import evaluate_elsewhere
from etl.quality.judge import judge

__all__ = ["CompiledSuite", "compile_suite", "evaluate_elsewhere", "judge", "require_evaluable"]
