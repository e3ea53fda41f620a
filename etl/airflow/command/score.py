"""Scores deliveries in the form that Airflow's data quality provider reads of an asset event.

The provider is apache-airflow-providers-common-dataquality, 0.1.0; its `require_quality` asks for the score, from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etl.common.database import transaction
from etl.common.statements import Statements
from etl.pipeline import Pipeline

STATEMENTS = Statements(__name__)

WARNED = 0.25  # what a rule that failed and stops nothing takes off, of what a critical one does
MOST_NAMED = 50  # rules of each kind, in an event that Airflow keeps


def score(dsn: str, pipeline: Pipeline, deliveries: Sequence[int], run: str) -> dict[str, Any] | None:
    """Return how the rules came out over these deliveries, each by the worst of them; None where no rule judged them."""
    with transaction(dsn) as cursor:
        rules = STATEMENTS.execute(cursor, "rules_of", deliveries=list(deliveries)).fetchall()
    if not rules:
        return None
    failed = [reason for reason, _, is_failed in rules if is_failed]
    warned = [reason for reason, held, is_failed in rules if not held and not is_failed]
    return {
        "run_uid": run,
        "ruleset": pipeline.suite,
        "table": pipeline.table,
        "score": round(1 - (len(failed) + WARNED * len(warned)) / len(rules), 4),
        "passed": len(rules) - len(failed) - len(warned),
        "warned": len(warned),
        "failed": len(failed),
        "errored": 0,  # a rule that can't be evaluated stops its batch
        "failed_rules": failed[:MOST_NAMED],
        "warned_rules": warned[:MOST_NAMED],
    }
