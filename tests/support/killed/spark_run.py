"""One whole run in a process that can be killed: it stops at a step, says so in a marker file, and waits.

Called as `spark_run <pipeline> <step> <passes> <folder> <run | follow | replay>`, with the settings
in the environment as for the command; a replay is of deliveries that are in force, all of them. It waits by reading from a
FIFO that nobody writes to.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from etl import services
from etl.common import steps
from etl.common.settings import load_settings
from etl.common.steps import Step
from etl.pipeline import load_pipeline
from etl.runs.follow import RunControl
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from etl.runs.run import run
from etl.runs.workspace import Workspace


@dataclass(kw_only=True)
class StopAt:
    """Stops the process that comes to the step: the driver, or an executor's worker."""

    step: str
    folder: str
    passes: int  # how often the step is passed before it stops

    def __call__(self, step: Step) -> None:
        if step != self.step:
            return
        if self.passes:
            self.passes -= 1
            return
        Path(self.folder, f"{step}.marker").write_text(str(os.getpid()))
        with Path(self.folder, "reached").open("w") as reached:
            reached.write(f"{os.getpid()}\n")
        Path(self.folder, "wait").read_text()


def main() -> None:
    name, step, passes, folder, how = sys.argv[1:]
    settings = load_settings()
    found = services.up(settings)
    os.environ.update(found.environment)
    place = Workspace(settings=settings, services=found)
    stop = StopAt(step=step, folder=folder, passes=int(passes))
    steps.listen(stop)
    pipeline = load_pipeline(name, settings.pipelines)
    stay = RunControl(every=timedelta(seconds=1) if how == "follow" else None)
    if how == "replay":
        planned = plan(place, pipeline, Selection(deliveries=((1, sys.maxsize),)))
        replay(place, pipeline, planned, who="tests", on_step=stop)
    else:
        run(place, pipeline, on_step=stop, control=stay)
