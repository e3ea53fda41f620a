"""The form on which a person triggers a run, each field declared once: light to import.

The forms of both DAGs, the operator's keywords and template fields, and what a try of its task tells the command
are made of this declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

_DECLARED = "declared"  # the key of a field's metadata
LONGEST_LIST = 20_000  # characters, of a list of numbers: a thousand rows from a page, whatever their numbers
LONGEST_CORRECTIONS = 200_000  # characters: they are kept with the run in Airflow's database
_MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+(Z|[+-][0-9:]+)?)?$"


@dataclass(frozen=True, kw_only=True)
class FormField:
    """How Airflow shows a field, and what may be typed into it."""

    default: bool | None  # None: it takes text
    title: str
    description: str
    empty: str = ""  # what it means in the form of a pipeline's own runs, where that is another
    replays_alone: bool = False  # the form of a pipeline's own runs does not have it
    closing_alone: bool = False  # the form of the own runs of a pipeline that closes folders alone has it
    checks: Mapping[str, Any] = field(default_factory=dict)  # by JSON Schema and in Airflow's own words

    def schema(self, *, replays: bool) -> dict[str, Any]:
        """Return the field's JSON Schema, for the form of replays or for that of the pipeline's own runs."""
        description = self.description
        if self.empty and not replays:
            description = f"{description.rstrip('.')}; empty: {self.empty}."
        kind = ["null", "string"] if self.default is None else "boolean"
        return {"type": kind, "title": self.title, "description": description, **self.checks}

    def read(self, text: str | None) -> Any:
        """Read the field as Airflow renders it into text: a blank one says nothing, any other ticks a box."""
        return (text or "").strip() or None if self.default is None else bool(text)


def _text(
    title: str, description: str, *, empty: str = "", replays_alone: bool = False, **checks: Any
) -> Any:
    return _declared(
        FormField(
            default=None,
            title=title,
            description=description,
            empty=empty,
            replays_alone=replays_alone,
            checks=checks,
        )
    )


def _tick(title: str, description: str, *, closing_alone: bool = False) -> Any:
    return _declared(
        FormField(default=False, title=title, description=description, closing_alone=closing_alone)
    )


def _declared(one: FormField) -> Any:
    return field(default=one.default, metadata={_DECLARED: one})


@dataclass(frozen=True, kw_only=True)
class RunForm:
    """What the form says; nothing filled in: as on schedule."""

    driver_memory: str | None = _text(
        "Memory of Spark's driver",
        "For this run alone, such as 4g; empty: as the settings say.",
        pattern=r"^[1-9][0-9]*[mg]$",
        maxLength=12,
    )
    deliveries: str | None = _text(
        "Replay deliveries",
        "Such as 4..7,9: delivered again, from the same inputs, in their own place.",
        empty="what has landed since",
        pattern=r"^[0-9]+([.][.][0-9]+)?(,[0-9]+([.][.][0-9]+)?)*$",
        maxLength=LONGEST_LIST,
    )
    start: str | None = _text(
        "Replay an interval: its start",
        "Such as 2013-03-01, in UTC: every delivery with a row or a file in it, by the declared interval.",
        replays_alone=True,
        pattern=_MOMENT,
        maxLength=40,
    )
    end: str | None = _text(
        "Replay an interval: its end",
        "Exclusive, such as 2013-04-01.",
        replays_alone=True,
        pattern=_MOMENT,
        maxLength=40,
    )
    releases: str | None = _text(
        "Rows released since",
        "For a replay or a backfill: keep leaves them as they were released, drop removes them with the rest; not"
        " said: where there are any, nothing is replayed.",
        enum=[None, "keep", "drop"],
        values_display={"null": "not said"},
    )
    accept_changed: bool = _tick(
        "Take changed inputs",
        "For a replay or a backfill: inputs that have changed, or are gone, are taken as they are now.",
    )
    accept_unreadable: bool = _tick(
        "Hold what can't be read",
        "For a replay or a backfill: of files that can't be read to their end, what can be read is delivered, and"
        " the rest held.",
    )
    fewer: bool = _tick(
        "Deliver fewer rows",
        "For a replay or a backfill: it goes on where it delivers fewer rows than it replaces, by more than the declared"
        " max_fewer_share; needs the reason below.",
    )
    closed: bool = _tick(
        "Look into closed folders",
        "What landed there late is delivered as well: in this run, folders that open_for has closed are listed, too.",
        closing_alone=True,
    )
    release: str | None = _text(
        "Release held rows",
        "Their numbers in quarantine, such as 17,18: judged again, and delivered where they pass.",
        replays_alone=True,  # the right to trigger that DAG is the right to release
        pattern=r"^[0-9]+(,[0-9]+)*$",
        maxLength=LONGEST_LIST,
    )
    corrections: str | None = _text(
        "Corrections of these rows",
        'JSON Lines as `sluice quarantine export` writes them: {"quarantine_id": 17, "row": {"amount": 3}}.',
        replays_alone=True,
        format="multiline",
        maxLength=LONGEST_CORRECTIONS,
    )
    why: str | None = _text("Why", "Kept with each row that is released, or with the replay.", maxLength=2000)

    @classmethod
    def rendered(cls, texts: Mapping[str, str | None]) -> RunForm:
        """Read all fields as Airflow renders them."""
        return cls(**{name: FIELDS[name].read(text) for name, text in texts.items()})

    @property
    def names_deliveries(self) -> bool:
        """Return True if deliveries or an interval are to be replayed."""
        return bool(self.deliveries or self.start or self.end)

    @property
    def says_how_to_replay(self) -> bool:
        return bool(self.releases or self.accept_changed or self.accept_unreadable or self.fewer)

    def filled_in(self) -> dict[str, Any]:
        """Return the fields that say something, as the `conf` of an Airflow run has them."""
        return {name: value for name in FIELDS if (value := getattr(self, name))}


FIELDS: Mapping[str, FormField] = {one.name: one.metadata[_DECLARED] for one in fields(RunForm)}
