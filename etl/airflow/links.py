"""The addresses of the Data quality pages, and the task's link to the page of its run: light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

from etl.airflow.questions.addresses import question_address

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PAGES = "/data-quality"  # below Airflow's own address


def place_of() -> str:
    """Return the path of the pages as a browser asks for it: Airflow may live below a path of its own."""
    address = str(conf.get("api", "base_url", fallback=""))
    return urlsplit(address).path.rstrip("/") + PAGES


def page_of_stop(pipeline: str) -> str:
    """Return the address of the page of a pipeline's stopped batch, within Airflow's own."""
    return f"{place_of()}/{quote(pipeline, safe='')}/stopped"


def question_link(dag_id: str, run_id: str, task_id: str) -> str:
    """Return the address at which a person answers what a task asks; a path alone where Airflow's own is not known."""
    return question_address(str(conf.get("api", "base_url", fallback="")), dag_id, run_id, task_id)


class QualityLink(BaseOperatorLink):
    """A task's link to the page that says what its run delivered, and whether it is good."""

    name = "Data quality"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        pipeline: str = getattr(operator, "pipeline", ti_key.dag_id)  # in a DAG of any name
        asked = urlencode({"dag": ti_key.dag_id, "run_id": ti_key.run_id, "task_id": ti_key.task_id})
        return f"{place_of()}/{quote(pipeline, safe='')}/run?{asked}"
