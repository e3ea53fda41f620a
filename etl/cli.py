"""The command `sluice`. Results go to standard output, what happens meanwhile to standard error."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
from functools import partial
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from etl import (
    cli_airflow,
    cli_models,
    cli_publish,
    cli_quarantine,
    cli_replay,
    cli_state,
    cli_status,
    cli_stop,
    cli_suites,
    sparklog,
)
from etl.command import (
    AsJson,
    PipelineName,
    duration,
    here,
    load,
    print_json,
    print_result,
    result_apart,
    shown,
    shown_lines,
    who,
)
from etl.ending import in_short, without_secrets
from etl.errors import SluiceError, Stopped
from etl.outage import outages_told
from etl.settings import load_settings, with_spark_conf
from etl.signals import SIGNALS, heeded, stop_at_once

app = typer.Typer(
    help="Exactly-once micro-batch ETL: each batch is judged, then lands in S3 Parquet and PostgreSQL together.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def main() -> NoReturn:
    """Run the command; every failure is one message and an exit code, never a traceback of a person's mistake."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("sluice").setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(
        logging.CRITICAL
    )  # it reports a batch's error, which we report ourselves
    for number in SIGNALS:
        signal.signal(number, stop_at_once)
    try:
        with outages_told():
            app(standalone_mode=True)
    except (Exception, Stopped) as error:  # noqa: BLE001 - the last resort of a command line
        sys.exit(_told(error))
    sys.exit(0)


def _told(error: BaseException) -> int:
    """Tell what ended the command, and return its exit code."""
    if stopped := Stopped.behind(error):
        err.print(f"sluice: stopped by {stopped}; {stopped.left}", markup=False)
        return stopped.exit_code
    code = error.exit_code if isinstance(error, SluiceError) else SluiceError.exit_code
    if code == SluiceError.exit_code:
        _tell_of_spark()
    if not isinstance(error, SluiceError):
        return _unexpected(error)
    err.print(shown_lines(f"sluice: {error}"), style="red")
    for note in getattr(error, "__notes__", []):
        err.print(shown_lines(f"  {note}"))
    return code


def _tell_of_spark() -> None:
    """Before the error, whose message is to be the last."""
    if lines := sparklog.last_lines():
        err.print(shown(f"Spark's log, {sparklog.current()}, ends with:"))
        for line in lines:
            err.print(shown(f"  {without_secrets(line)}"))


def _unexpected(error: BaseException) -> int:
    logging.getLogger("sluice").debug("unexpected", exc_info=error)
    err.print(shown(f"sluice: unexpected {type(error).__name__}: {in_short(error)}"), style="red")
    err.print(
        "  next: `sluice --verbose …` shows the traceback; the next run goes on from the ledger", markup=False
    )
    return SluiceError.exit_code


@app.callback()
def options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show details and tracebacks.")] = False,
) -> None:
    """Options of every command."""
    if verbose:
        logging.getLogger("sluice").setLevel(logging.DEBUG)


@app.command()
def up() -> None:
    """Start the embedded services; they run until `sluice down`."""
    place = here()
    out.print(f"PostgreSQL  {_without_secrets(place.services.postgres)}", markup=False)
    out.print(f"S3          {place.services.lake} at {place.services.s3_endpoint or 'AWS'}", markup=False)
    out.print('next: `sluice run PIPELINE`; `eval "$(sluice env)"` lets psql, boto3 and DuckDB in')


@app.command()
def down() -> None:
    """Stop Airflow and the embedded services; their data stays."""
    from etl import services
    from etl.services import airflow as stack

    settings = load_settings()
    stopped = (*stack.stop(settings), *services.down(settings))
    out.print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


# what follows Airflow's own command is its own, options included
app.command(context_settings={"allow_interspersed_args": False})(cli_airflow.airflow)
app.command()(cli_airflow.trigger)
app.command()(cli_stop.stop)
app.command()(cli_replay.replay)
app.command()(cli_publish.publish)
app.add_typer(cli_quarantine.app, name="quarantine")
app.command("try")(cli_suites.try_)
app.command()(cli_suites.whatif)
app.command()(cli_state.state)
app.command()(cli_models.train)
app.command()(cli_suites.suggest)
app.command()(cli_suites.columns)
app.command()(cli_suites.docs)


def _without_secrets(dsn: str) -> str:
    from psycopg2.extensions import make_dsn, parse_dsn

    shown = {key: value for key, value in parse_dsn(dsn).items() if "pass" not in key}
    return str(make_dsn(**shown))


@app.command()
def env() -> None:
    """Print shell exports of the settings in force. They include passwords and keys: for `eval` only."""
    from etl.environment import exports

    for name, value in exports(here()).items():
        typer.echo(f"export {name}={shlex.quote(value)}")


@app.command()
def land(
    dataset: Annotated[
        str, typer.Argument(help="What to land: flights (with weather), devices, actions or requests.")
    ],
    days: Annotated[str | None, typer.Option(help="First..last day, such as 2013-01-01..2013-01-31.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of what is generated: all but the flights.")] = None,
) -> None:
    """Land a data set the way an upstream would; landing again changes nothing."""
    from etl.errors import SetupError
    from etl.generated import DATASETS, FIRST_DAYS, SEED, LandedFiles, land_generated
    from etl.landing import Landed, land_flights, parse_days, parse_range

    if dataset != "flights" and dataset not in DATASETS:
        raise SetupError(f"There is no data set {dataset!r}", remedy=f"one of flights, {', '.join(DATASETS)}")
    if seed is not None and dataset not in DATASETS:
        raise SetupError(
            "--seed: the flights are not generated", remedy=f"leave it out of `sluice land {dataset}`"
        )
    settings = load_settings()
    if settings.landing.startswith("s3a://"):
        here(settings)
    landed: Landed | LandedFiles
    if dataset in DATASETS:
        chosen = parse_range(days or FIRST_DAYS)
        landed = land_generated(settings.landing, dataset, chosen, seed=SEED if seed is None else seed)
        counts = ", ".join(f"{count:,} {name}" for name, count in landed.counts.items())
        what = f"{dataset}: {counts}, in {landed.files:,} files"
    else:
        landed = land_flights(settings, parse_days(days))
        what = f"{landed.flights:,} flights in {landed.files:,} files, {landed.bytes / 1e6:.0f} MB,"
    done = f"{landed.written:,} written" if landed.written else "nothing was new"
    out.print(f"{what} below {settings.landing}: {done}", markup=False)


@app.command()
def run(
    name: PipelineName,
    as_json: AsJson = False,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of Spark for this run; repeatable."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Stay up and deliver what lands meanwhile, until Ctrl-C, SIGTERM or `sluice stop`.",
        ),
    ] = False,
    every: Annotated[
        str | None,
        typer.Option(help="With --follow: how often to look for more, such as 10s; default: as declared."),
    ] = None,
    airflow: Annotated[
        str | None, typer.Option(hidden=True, help="The Airflow try that asks, as JSON.")
    ] = None,
) -> None:
    """Deliver all that has landed, batch by batch, and stop; Ctrl-C or SIGTERM ends it after the batch in flight."""
    from etl.airflow_try import AirflowTry
    from etl.asked import run_asked
    from etl.errors import SetupError
    from etl.progress import summary_lines, watching
    from etl.run import Summary
    from etl.stay import Stay

    if every and not follow:
        raise SetupError("--every goes with --follow alone", remedy="`sluice run --help`")
    asked = AirflowTry.parse(airflow) if airflow else None
    place = here(with_spark_conf(load_settings(), conf or []))
    pipeline = load(name, place.settings)
    follow = follow or (pipeline.follow and not pipeline.replayable)
    stay = Stay(every=(duration("--every", every) if every else pipeline.every) if follow else None)
    try:
        with heeded(stay, told=err.is_terminal), watching(place, pipeline, err, stay) as progress:
            say = partial(err.print, markup=False)
            summary = run_asked(place, pipeline, asked, progress, say, stay)
    except SluiceError as error:
        if as_json and isinstance(error.done, Summary):
            print_json(error.done.json())
        raise
    if as_json:
        print_json(summary.json())
    else:
        for line in summary_lines(place, pipeline, summary):
            out.print(line, markup=False)
    if stay.heeded and stay.by_signal and not follow:  # there was more to deliver
        raise Stopped(stay.by_signal)


@app.command()
def status(
    name: Annotated[
        str | None, typer.Argument(metavar="[PIPELINE]", help="One pipeline; all by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show where each pipeline stands and what it waits for; of one pipeline also its newest batches."""
    from etl.pipeline import load_pipelines
    from etl.status import states

    place = here()
    found = states(place, name)
    if as_json:
        print_json([state.json() for state in found])
    else:
        cli_status.show(out, found)
        if airflow := cli_airflow.where(place.settings):
            out.print(airflow, markup=False)
    if name is None:
        load_pipelines(place.settings.pipelines)  # a declaration that is not right is told after the others


@app.command()
def audit(name: PipelineName, as_json: AsJson = False) -> None:
    """Recount both sinks and compare them with each other and with the ledger; exit 1 on a difference."""
    from etl.audit import audit as audit_pipeline

    place = here()
    report = audit_pipeline(place, load(name, place.settings))
    if as_json:
        print_json(report.json())
    else:
        for line in report.lines():
            out.print(shown_lines(line))
    if not report.clean:
        raise typer.Exit(1)


@app.command()
def files(name: PipelineName, as_json: AsJson = False) -> None:
    """List exactly the committed Parquet files of live deliveries."""
    from etl.read import committed_files

    result_apart(True)
    place = here()
    found = committed_files(place, load(name, place.settings))
    if as_json:
        print_json(found.json())
    else:
        print_result("".join(f"{file.path}\n" for file in found.files))


@app.command()
def recover(
    name: PipelineName,
    accept_gone: Annotated[
        bool, typer.Option("--accept-gone", help="Go on without what Kafka has no longer; kept on record.")
    ] = False,
    why: Annotated[str | None, typer.Option(help="The reason, kept with --accept-gone.")] = None,
) -> None:
    """Mend a checkpoint that is lost, damaged or out of step with the ledger; nothing is lost or doubled.

    What a transform keeps between batches is made anew where it is lost: all that is in force runs through it once more.
    """
    from etl.errors import SetupError
    from etl.live import run_command
    from etl.phrases import counted
    from etl.recover import recover as recover_pipeline
    from etl.seeds import Accepted

    if accept_gone != bool(why):
        raise SetupError("--accept-gone and --why go together", remedy="`sluice recover --help`")

    def told(batch: int, of: int) -> None:
        if batch == 1:
            out.print(
                f"{name}: its state is rebuilt from {counted(of, 'batch', 'batches')}; nothing of them is delivered again"
            )
        out.print(f"  batch {batch} of {of}")

    place = here()
    accepted = Accepted(who=who(), why=why) if why else None
    pipeline = load(name, place.settings)
    done = recover_pipeline(place, pipeline, told=told, accepted=accepted)
    if done.problem is None:
        out.print(f"{name}: nothing to recover; checkpoint and ledger fit together")
        return
    out.print(f"{name}: {done.problem}", markup=False)
    for receipt in done.put_back:
        out.print(
            f"  put back from the lake: delivery {receipt.delivery_id}, batch {receipt.batch_id},"
            f" {receipt.delivered:,} rows"
        )
    for words in done.again:
        out.print(f"  lost with PostgreSQL's last state: {words}", markup=False)
    for words in done.gone:
        out.print(f"  on record as gone: {words}", markup=False)
    what = "partitions, each where the ledger is" if pipeline.topics else "delivered files"
    if pipeline.replayable:
        out.print(f"  stream {done.stream}, whose checkpoint knows the {done.seen:,} {what}")
    out.print(f"next: `{run_command(pipeline)}`")


@app.command()
def decide(
    name: PipelineName,
    batch: Annotated[int, typer.Option(help="The stopped batch's id.")],
    why: Annotated[str, typer.Option(help="The reason, kept with the decision.")],
    quarantine_all: Annotated[
        bool,
        typer.Option("--quarantine-all", help="Hold the failing rows, or the whole batch for a table rule."),
    ] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Deliver the failing rows as they are.")] = False,
    stream: Annotated[
        str | None, typer.Option(help="The batch's stream; the current one by default.")
    ] = None,
) -> None:
    """Record what to do with a stopped batch; the next run acts on it."""
    from etl.errors import SetupError
    from etl.status import record_decision

    if quarantine_all == accept:
        raise SetupError("Say one of --quarantine-all and --accept", remedy="`sluice decide --help`")
    place = here()
    action = "accept" if accept else "quarantine-all"
    decided = record_decision(
        place, load(name, place.settings), batch=batch, stream=stream, action=action, who=who(), why=why
    )
    out.print(decided, markup=False)


@app.command()
def sweep(
    name: PipelineName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed.")] = False,
) -> None:
    """Remove what fenced and failed attempts left behind, once it is older than the backup horizon."""
    from etl.sweep import sweep as sweep_pipeline

    place = here()
    report = sweep_pipeline(place, load(name, place.settings), dry_run=dry_run)
    for line in report.lines():
        out.print(line, markup=False)


@app.command()
def doctor(
    rights: Annotated[
        bool, typer.Option("--rights", help="Print the script that gives a role its rights.")
    ] = False,
) -> None:
    """Check the machine, the settings and the services; exit 2 when something is missing."""
    from etl.doctor import examine, rights_script

    if rights:
        typer.echo(rights_script(load_settings()))
        return
    findings = examine()
    for finding in findings:
        out.print(finding.line(), markup=False)
    if not all(finding.good for finding in findings):
        raise typer.Exit(2)


if __name__ == "__main__":
    main()
