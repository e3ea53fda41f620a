"""`sluice land`: lands input to try the shipped pipelines with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etl.cli.shared import DONE_SO_FAR, open_workspace, out, telling_of_new_home
from etl.common.number_ranges import MOST
from etl.common.settings import load_settings
from etl.common.wording import pluralize
from etl.spark.signals import leaves


def land(
    dataset: Annotated[
        str, typer.Argument(help="What to land: flights (with weather), devices, actions or requests.")
    ],
    days: Annotated[str | None, typer.Option(help="First..last day, such as 2013-01-01..2013-01-31.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=MOST, help="Seed of the generated data sets (all but the flights)."),
    ] = None,
) -> None:
    """Land a data set the way an upstream would; landing again changes nothing."""
    from etl.common.errors import SetupError
    from etl.operations.datasets.flights import Landed, land_flights, parse_days, parse_range
    from etl.operations.datasets.generated import DATASETS, FIRST_DAYS, SEED, LandedFiles, land_generated
    from etl.services.process import make_folder

    if dataset != "flights" and dataset not in DATASETS:
        raise SetupError(f"There is no data set {dataset!r}", remedy=f"one of flights, {', '.join(DATASETS)}")
    if seed is not None and dataset not in DATASETS:
        raise SetupError(
            "--seed: the flights are not generated", remedy=f"leave it out of `sluice land {dataset}`"
        )
    leaves(DONE_SO_FAR)
    settings = load_settings()
    if settings.landing.startswith("s3a://"):
        open_workspace(settings, begins=True)
    elif Path(settings.landing).is_relative_to(settings.home):
        with telling_of_new_home(settings):
            make_folder(settings.home)  # before its folders are made: it is the user's alone
    landed: Landed | LandedFiles
    if dataset in DATASETS:
        span = parse_range(days or FIRST_DAYS)
        landed = land_generated(settings.landing, dataset, span, seed=SEED if seed is None else seed)
        counts = ", ".join(f"{count:,} {name}" for name, count in landed.counts.items())
        what = f"{dataset}: {counts}, in {pluralize(landed.files, 'file')}"
    else:
        landed = land_flights(settings, parse_days(days))
        what = f"{pluralize(landed.flights, 'flight')} in {pluralize(landed.files, 'file')}, {landed.bytes / 1e6:.0f} MB,"
    done = f"{landed.written:,} written" if landed.written else "nothing was new"
    out.print(f"{what} below {settings.landing}: {done}")
