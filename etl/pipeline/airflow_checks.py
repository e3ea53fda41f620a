"""Checks what a declaration says to Airflow, without Airflow, and names every mistake by its field."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Mapping
from typing import Any

from etl.common.wording import pluralize
from etl.pipeline.declaration import Airflow

LONGEST_DECIDERS = 4_000  # characters: what a task has beyond 4,096, Airflow cuts off
_PRESETS = frozenset(
    {"@once", "@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly", "@annually"}
)


def airflow_problems(pipeline: Any) -> list[str]:
    """Name all that is wrong with the fields that are for Airflow, each as `field: what, and what is wanted`."""
    found = [] if pipeline.schedule is None else schedule_problems(pipeline.schedule)
    found += _follow_problems(pipeline)
    found += _task_problems(pipeline)
    if not isinstance(pipeline.airflow, Airflow):
        return [*found, f"airflow: {pipeline.airflow!r} must be Airflow(…)"]
    found += [f"airflow.{wrong}" for wrong in _option_problems(pipeline.airflow)]
    if pipeline.airflow.time_zone != "UTC" and not _has_days(pipeline):
        found.append(
            "airflow.time_zone: it is that of cron fields, of a preset, of `freshness` and of `volume`, and there is none"
        )
    if pipeline.follow and pipeline.airflow.execution_timeout is not None:
        found.append("airflow.execution_timeout: a run that stays up has none; leave it out, or `follow`")
    return found


def _has_days(pipeline: Any) -> bool:
    """Tell whether the declaration has anything of which the time zone is."""
    return isinstance(pipeline.schedule, str) or pipeline.freshness is not None or pipeline.volume is not None


def _follow_problems(pipeline: Any) -> list[str]:
    found: list[str] = []
    if not isinstance(pipeline.follow, bool):
        found.append(f"follow: {pipeline.follow!r} must be True or False")
    elif pipeline.follow:
        found += [
            f"{name}: a run that stays up has none; leave it out, or `follow`"
            for name in ("schedule", "deadline")
            if getattr(pipeline, name) is not None
        ]
    every, least, most = pipeline.every, dt.timedelta(seconds=1), dt.timedelta(days=1)
    if not (isinstance(every, dt.timedelta) and least <= every <= most):
        found.append(f"every: {every!r} must be a datetime.timedelta from one second to a day")
    return found


def _task_problems(pipeline: Any) -> list[str]:
    """Name what is wrong with the fields that Airflow's task and DAG take."""
    found: list[str] = []
    for name in ("deadline", "alert_consumer_lag"):
        limit = getattr(pipeline, name)
        if limit is not None and not (isinstance(limit, dt.timedelta) and limit > dt.timedelta()):
            found.append(f"{name}: {limit!r} must be a datetime.timedelta longer than nothing")
    if not _is_whole(pipeline.retries) or pipeline.retries < 0:
        found.append(f"retries: {pipeline.retries!r} must be a whole number of 0 or more")
    delay = pipeline.retry_delay
    if not (isinstance(delay, dt.timedelta) and dt.timedelta() < delay <= dt.timedelta(minutes=30)):
        found.append(f"retry_delay: {delay!r} must be a datetime.timedelta of at most 30 minutes")
    if not isinstance(pipeline.owner, str) or not pipeline.owner.strip():
        found.append(f"owner: {pipeline.owner!r} must be a name")
    if not isinstance(pipeline.tags, tuple) or not all(_is_tag(tag) for tag in pipeline.tags):
        found.append(f"tags: {pipeline.tags!r} must be a tuple of texts of 1 to 100 characters")
    return found


def _option_problems(options: Any) -> list[str]:
    found = []
    if not _is_zone(options.time_zone):
        found.append(
            f"time_zone: {options.time_zone!r} is no zone of this machine's, such as 'Europe/Berlin'"
        )
    for name in ("queue", "executor", "pool"):
        given = getattr(options, name)
        if given is not None and not (isinstance(given, str) and given.strip()):
            found.append(f"{name}: {given!r} must be a name")
    if not _is_whole(options.pool_slots) or options.pool_slots < 1:
        found.append(f"pool_slots: {options.pool_slots!r} must be a whole number of 1 or more")
    elif options.pool_slots > 1 and options.pool is None:
        found.append("pool_slots: the pipeline's own pool has one slot; name the shared one by `pool`")
    if not _is_whole(options.priority_weight):
        found.append(f"priority_weight: {options.priority_weight!r} must be a whole number")
    timeout = options.execution_timeout
    if timeout is not None and not (isinstance(timeout, dt.timedelta) and timeout > dt.timedelta()):
        found.append(f"execution_timeout: {timeout!r} must be a datetime.timedelta longer than nothing")
    within = options.answer_within
    if within is not None and not (isinstance(within, dt.timedelta) and within > dt.timedelta()):
        found.append(
            f"answer_within: {within!r} must be a datetime.timedelta longer than nothing, or None: nobody is asked"
        )
    named = options.deciders
    texts = [*named, *named.values()] if isinstance(named, Mapping) else named
    if not isinstance(named, tuple | Mapping) or not all(
        isinstance(one, str) and one.strip() for one in texts
    ):
        found.append(f"deciders: {named!r} must be a tuple of users' names, or a mapping of their ids")
    elif (length := len(str(options.ids_of_deciders))) > LONGEST_DECIDERS:  # as the serialised DAG has them
        found.append(
            f"deciders: they are written in {pluralize(length, 'character')}; Airflow keeps {LONGEST_DECIDERS:,}"
        )
    made = options.executor_config
    if not (made is None or callable(made) or isinstance(made, Mapping)):
        found.append(f"executor_config: {made!r} must be a mapping, or a function that returns one")
    for name in ("access_control", "replays_access_control"):
        rights = getattr(options, name)
        if not (rights is None or isinstance(rights, Mapping)):
            found.append(f"{name}: {rights!r} must be a mapping of roles")
    return found


def _is_zone(name: object) -> bool:
    try:
        return isinstance(name, str) and bool(zoneinfo.ZoneInfo(name))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _is_tag(tag: object) -> bool:
    return isinstance(tag, str) and 0 < len(tag) <= 100


def schedule_problems(schedule: object) -> list[str]:
    """Name what is wrong with a schedule; empty when nothing is.

    It has to be one that Airflow takes, to come due at least once more, and to be the same at each look. What a function
    returns is Airflow's to judge.
    """
    if callable(schedule) or (isinstance(schedule, str) and schedule in _PRESETS):
        return []
    if not isinstance(schedule, str) or len(schedule.split()) != 5:
        presets = ", ".join(sorted(_PRESETS))
        return [f"schedule: {schedule!r} is neither five cron fields nor one of {presets} nor a function"]
    if any(part[0] in "Rr" for part in schedule.split()):
        return [
            f"schedule: {schedule!r} has a random field, and would be another at each look; write a number"
        ]
    return _cron_problems(schedule)


def _cron_problems(schedule: str) -> list[str]:
    from croniter import CroniterBadDateError, CroniterError, croniter  # as Airflow's own timetable does

    try:
        croniter(schedule).get_next()
    except CroniterBadDateError:
        return [f"schedule: {schedule!r} is never due; name a day that some year has"]
    except CroniterError as wrong:
        return [f"schedule: {schedule!r} is no cron expression: {wrong}"]
    return []
