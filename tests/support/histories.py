"""Histories that are delivered once, and put back in their place for each test that begins from one."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from etl.common.settings import Settings
from etl.services import Services
from tests.support.backups import Backup
from tests.support.databases import database_name, drop, new_database
from tests.support.home import Home

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class History:
    """A home as it was when its history had just been delivered."""

    home: Home
    made: Any
    database: Backup
    copies: dict[Path, Path]  # of each folder: pipelines, landing and checkpoints; the lake

    def keep(self) -> None:
        self.database.take()
        for folder, copy in self.copies.items():
            shutil.copytree(folder, copy)

    def restore(self) -> None:
        """Put all of it back in its place, and nothing else: locations are part of a history."""
        self.database.restore()
        for folder, copy in self.copies.items():
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)


@dataclass(frozen=True, kw_only=True)
class Histories:
    """What the tests of one file begin from."""

    new_home: Callable[[], Home]
    server: str
    objects: Path  # the folder in which the S3 server keeps its buckets
    aside: Path
    made: dict[object, History]

    def begin(self, deliver: Callable[..., T], **options: object) -> tuple[Home, T]:
        """Return a home as `deliver` leaves a new one, and what it returns; deliver for the first of all tests alone."""
        key = (deliver, *sorted(options.items()))
        if key not in self.made:
            home = self.new_home()
            made = deliver(home, **options)
            forget_state(home)
            self.made[key] = self._kept(home, made)
        else:
            forget_state(self.made[key].home)
            self.made[key].restore()
        found = self.made[key]
        return replace(found.home), deepcopy(found.made)

    def database_of(self, home: Home) -> Backup:
        """Return the backup of a home's database, as of when its history had just been delivered."""
        return next(one.database for one in self.made.values() if one.home.dsn == home.dsn)

    def _kept(self, home: Home, made: object) -> History:
        database = database_name(home.dsn)
        folders = (home.root, self.objects / home.place.services.lake.removeprefix("s3://"))
        history = History(
            home=replace(home),
            made=made,
            database=Backup(server=self.server, database=database, name=f"{database}_history"),
            copies={folder: self.aside / uuid.uuid4().hex for folder in folders},
        )
        history.keep()
        return history


def forget_state(home: Home) -> None:
    """Unload what Spark has of any query's state, which it would go on to write where the history is put back."""
    if home.spark is not None:
        jvm: Any = home.spark.sparkContext._jvm
        jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


@contextmanager
def histories_of(
    new_home: Callable[[str], Home], template: str, services: Services, settings: Settings, aside: Path
) -> Iterator[Histories]:
    """Make histories at homes that `new_home` makes over new databases; drop these at the end."""
    with ExitStack() as databases:

        def home() -> Home:
            made = new_home(databases.enter_context(new_database(services.postgres, template=template)))
            databases.callback(drop, services.postgres, f"{database_name(made.dsn)}_history")
            return made

        yield Histories(
            new_home=home,
            server=services.postgres,
            objects=settings.home / "s3" / "data",
            aside=aside,
            made={},
        )
