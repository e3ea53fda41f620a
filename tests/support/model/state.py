"""What the model's world consists of. All of it is frozen and hashable: a state is a value.

Numbers stand for what is random in production (tokens, stream ids, attempts' names): a new one is the smallest
that nothing in the state mentions any more, which no actor can tell from a random one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Inputs = frozenset[int]
"""Landed files, by number. Each holds one row, so a row is named by its file."""

NOTHING: Inputs = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """The data files and the delivery manifest of one attempt: what it put on the lake for its batch."""

    attempt: int
    stream: int
    batch: int
    inputs: Inputs
    rows: Inputs  # of the table; the rows of `inputs` that the suite passes, or those that a release lets out
    held: Inputs = NOTHING  # rows of `inputs` that are in quarantine instead
    number: int = 0  # the delivery id, from PostgreSQL's sequence; 0 where it makes no difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """One Iceberg metadata file with its manifests: the table as the pointer that names it shows it."""

    owner: int  # the attempt that drafted it
    objects: frozenset[Object]


EMPTY = Metadata(owner=0, objects=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A row of the ledger."""

    stream: int
    batch: int
    inputs: Inputs
    attempt: int
    number: int = 0
    live: bool = True  # false once another took its place
    origin: int = 0  # of a release: the attempt whose delivery had held its row


class Waiting(StrEnum):
    HELD = "held"
    RELEASED = "released"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A row of sluice.quarantine."""

    row: int
    attempt: int  # of the delivery that holds it
    waiting: Waiting


class Fate(StrEnum):
    OPEN = "open"
    FENCED = "fenced"
    DELIVERED = "delivered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A row of sluice.attempt."""

    attempt: int
    token: int
    fate: Fate
    apart: bool = False  # beside the stream, whose lease is none of its business


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """Everything that goes back in time together when a backup is restored."""

    lease: int = 0  # token; 0 = never taken
    current: int = 0  # the pipeline's current stream; 0 = none yet
    streams: frozenset[tuple[int, int]] = frozenset()  # (stream, its first batch)
    deliveries: frozenset[Delivery] = frozenset()
    warehouse: tuple[tuple[int, int], ...] = ()  # (row, attempt that wrote it), ascending; may hold one twice
    quarantine: frozenset[Held] = frozenset()
    pointer: Metadata = EMPTY
    attempts: frozenset[Attempt] = frozenset()
    leases: int = 0  # counts only where tokens are taken from it (a removed guard)
    sequence: int = 0  # of delivery ids; counts only where they make a difference
    taken: Inputs = NOTHING  # delivery ids of another pipeline's deliveries
    newest: int = 0  # the attempt of the newest delivery; only where the marker is part of the world
    numbers_compared: bool = True  # with the lake, since this server gave out the first
    marker_compared: bool = True  # with the ledger, since this server is the one that runs ask

    def live_inputs(self) -> Inputs:
        return frozenset(file for delivery in self.deliveries if delivery.live for file in delivery.inputs)

    def taken_out(self) -> Inputs:
        """Return the files of deliveries whose place another took, or none."""
        return frozenset(file for one in self.deliveries if not one.live for file in one.inputs)

    def has(self, attempt: int) -> bool:
        return any(delivery.attempt == attempt for delivery in self.deliveries)

    def numbers(self) -> frozenset[int]:
        """Return the delivery ids that the ledger refuses to give to another delivery."""
        return self.taken | {delivery.number for delivery in self.deliveries if delivery.number}

    def first_batch(self, stream: int) -> int:
        return dict(self.streams).get(stream, 0)

    def last_batch(self, stream: int) -> int:
        """Return the stream's last delivered batch; the one before its first when there is none."""
        delivered = [delivery.batch for delivery in self.deliveries if delivery.stream == stream]
        return max(delivered, default=self.first_batch(stream) - 1)

    def fate(self, attempt: int) -> Fate | None:
        return next((row.fate for row in self.attempts if row.attempt == attempt), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Spark's checkpoint folder: metadata, sources/, offsets/ and commits/.

    A batch's inputs are the entries of sources/ after the previous batch's end, up to its own.
    """

    stream: int
    sources: tuple[tuple[int, Inputs], ...] = ()  # (place in the log, counted from 1; files), ascending
    offsets: tuple[tuple[int, int], ...] = ()  # (batch, its end in sources/), ascending
    mark: int = -1  # highest batch in commits/

    def last_batch(self) -> int:
        return self.offsets[-1][0] if self.offsets else -1

    def end(self) -> int:
        return self.offsets[-1][1] if self.offsets else 0

    def last_source(self) -> int:
        return self.sources[-1][0] if self.sources else 0

    def files(self, after: int, to: int) -> Inputs:
        return frozenset(file for place, files in self.sources if after < place <= to for file in files)

    def read_until(self, batch: int) -> Inputs:
        """Return the files of all batches up to this one; none where it is not planned here."""
        return self.files(0, dict(self.offsets).get(batch, 0))

    def batches(self) -> tuple[tuple[int, Inputs], ...]:
        starts = (0, *(end for _, end in self.offsets))
        return tuple(
            (batch, self.files(start, end)) for start, (batch, end) in zip(starts, self.offsets, strict=False)
        )

    def seen(self) -> Inputs:
        return self.files(0, self.last_source())

    def damaged(self) -> bool:
        """Parts of it contradict each other, as the preflight can see."""
        batches, places = [batch for batch, _ in self.offsets], [place for place, _ in self.sources]
        holes = batches != list(range(len(batches))) or places != list(range(1, len(places) + 1))
        return (
            holes
            or self.end() > self.last_source()
            or not self.last_batch() - 1 <= self.mark <= self.last_batch()
        )


Folders = frozenset[tuple[int, Checkpoint]]
"""The checkpoint folders, each with the stream that its place is named by; somebody may put another's checkpoint there."""


class At(StrEnum):
    """Where a driver stands: the step it has done last."""

    READY = "ready"  # between batches
    PLANNED = "planned"  # Spark has written the batch's offsets and called foreachBatch
    OPENED = "opened"
    STAGED = "staged"
    DRAFTED = "drafted"
    LOCKED = "locked"
    HALF = "half"  # only where one transaction was cut in two (a removed guard)
    UNKNOWN = "unknown"  # connection lost during COMMIT
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A running `sluice run` and what it holds in memory."""

    at: At
    token: int
    stream: int
    seen: Inputs  # files in sources/, as Spark remembers them
    place: int  # of the last entry in sources/
    end: int  # of the last batch
    batch: int
    inputs: Inputs = NOTHING
    attempt: int = 0
    number: int = 0
    base: Metadata = EMPTY  # the pointer that the draft builds on
    restored: bool = False  # PostgreSQL went back in time while it ran
    suite: Inputs = NOTHING  # the rows that it holds

    def object(self) -> Object:
        return Object(
            attempt=self.attempt,
            stream=self.stream,
            batch=self.batch,
            inputs=self.inputs,
            rows=self.inputs - self.suite,
            held=self.inputs & self.suite,
            number=self.number,
        )


class RecoverAt(StrEnum):
    LEASED = "leased"
    DRAFTED = "drafted"
    LOCKED = "locked"
    MENDED = "mended"  # what is lost for good is named, and nothing tells of a loss any more
    REGISTERED = "registered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover:
    """A running `sluice recover`."""

    at: RecoverAt
    token: int
    attempt: int = 0  # its own, for the metadata it drafts
    base: Metadata = EMPTY
    forwarded: Object | None = None  # what it is about to commit again
    stream: int = 0  # the new one
    seed: Inputs = NOTHING


class Beside(StrEnum):
    """Where a replay or a release stands: the step it has done last."""

    OPENED = "opened"
    STAGED = "staged"
    DRAFTED = "drafted"
    LOCKED = "locked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A running `sluice replay`, `sluice quarantine release` or `sluice recover --before`."""

    at: Beside
    stream: int  # its own
    attempt: int
    replaces: frozenset[int] = frozenset()  # attempts of the deliveries whose place it takes
    inputs: Inputs = NOTHING
    origin: int = 0  # of a release: the attempt whose delivery holds the rows
    rows: Inputs = NOTHING  # that are let out
    base: Metadata = EMPTY
    token: int = 0  # of a withdrawal, which takes the stream's lease
    kept: Inputs = NOTHING  # files that its stream counts as read
    again: int = 0  # that stream, which reads all others again


class Sweep(StrEnum):
    LIST = "list"
    DECIDE = "decide"
    READ = "read"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeper:
    """A running `sluice sweep`."""

    done: tuple[Sweep, ...]
    data: frozenset[Object] = frozenset()  # as listed
    metadata: frozenset[Metadata] = frozenset()  # as listed
    settled: frozenset[int] = frozenset()  # attempts that can't commit any more
    quiet: bool = False  # no attempt was open when it decided
    referenced: frozenset[Object | Metadata] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How often each thing may still happen."""

    starts: int = 0
    recovers: int = 0
    crashes: int = 0
    lost_acks: int = 0
    backups: int = 0
    restores: int = 0  # of PostgreSQL alone
    rewinds: int = 0  # of PostgreSQL together with the checkpoints
    losses: int = 0
    copies: int = 0
    prunes: int = 0
    others: int = 0  # deliveries of another pipeline
    sweeps: int = 0
    replays: int = 0
    releases: int = 0
    withdrawals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    budget: Budget
    landed: Inputs = frozenset((0, 1))
    pruned: Inputs = NOTHING  # had landed, were delivered, and were removed
    named: Inputs = NOTHING  # lost files that recover named, and a person took care of
    numbered: bool = False  # delivery ids are part of the world
    marked: bool = False  # the lake's marker is part of the world; where not, it could never be written
    suite: Inputs = NOTHING  # rows that break a rule: held, not delivered
    postgres: Postgres = Postgres()
    backup: Postgres | None = None  # the oldest that could be restored
    folders: Folders = frozenset()
    kept_folders: Folders = frozenset()  # as they were at the backup, where they go back with it
    copy: Checkpoint | None = None  # somebody's copy of a folder
    marker: int = 0  # on S3: the attempt of the newest delivery; 0 = none
    ever: frozenset[tuple[int, int]] = (
        frozenset()
    )  # (delivery id, attempt; 0 = another pipeline's), once committed
    data: frozenset[Object] = frozenset()  # on S3
    metadata: frozenset[Metadata] = frozenset((EMPTY,))  # on S3
    drivers: tuple[Driver, ...] = ()
    recovers: tuple[Recover, ...] = ()
    asides: tuple[Apart, ...] = ()
    sweeper: Sweeper | None = None
    ghost: Driver | None = None  # a transaction whose client is gone; the server may still commit it

    def folder(self, stream: int) -> Checkpoint | None:
        """Return what is in a stream's checkpoint folder."""
        return next((found for place, found in self.folders if place == stream), None)

    def with_folder(self, stream: int, content: Checkpoint | None) -> Folders:
        """Return the folders once a stream's one has this content; None where it is removed."""
        others = frozenset(one for one in self.folders if one[0] != stream)
        return others if content is None else others | {(stream, content)}

    def to_deliver(self) -> Inputs:
        """Return what has landed, pruned since or not, and was not named as lost."""
        return (self.landed | self.pruned) - self.named

    def highest_number(self) -> int:
        """Return the highest delivery id that anything on the lake carries, of whatever pipeline."""
        carried = {item.number for item in self.data} | {number for number, who in self.ever if who == 0}
        return max(carried, default=0)

    def locked(self) -> bool:
        """Tell whether an open transaction has locked the pipeline's row."""
        return (
            self.ghost is not None
            or any(driver.at is At.LOCKED for driver in self.drivers)
            or any(recover.at is RecoverAt.LOCKED for recover in self.recovers)
            or any(aside.at is Beside.LOCKED for aside in self.asides)
        )

    def fresh_attempt(self) -> int:
        used = {item.attempt for item in self.data} | {item.owner for item in self.metadata}
        used |= {self.marker} | {attempt for _, attempt in self.ever}
        used |= {driver.attempt for driver in self.drivers} | {recover.attempt for recover in self.recovers}
        used |= {aside.attempt for aside in self.asides}
        for postgres in (self.postgres, self.backup):
            if postgres is not None:
                used |= {row.attempt for row in postgres.attempts}
                used |= {attempt for _, attempt in postgres.warehouse}
        if self.ghost:
            used.add(self.ghost.attempt)
        if self.sweeper:
            used |= {item.attempt for item in self.sweeper.data} | {
                item.owner for item in self.sweeper.metadata
            }
            used |= self.sweeper.settled
        return _smallest_beyond_zero_not_in(used)

    def fresh_token(self) -> int:
        used = {run.token for run in self.drivers} | {recovery.token for recovery in self.recovers}
        used |= {aside.token for aside in self.asides}
        for postgres in (self.postgres, self.backup):
            if postgres is not None:
                used |= {postgres.lease} | {row.token for row in postgres.attempts}
        if self.ghost:
            used.add(self.ghost.token)
        return _smallest_beyond_zero_not_in(used)

    def fresh_stream(self) -> int:
        used = {item.stream for item in self.data} | {driver.stream for driver in self.drivers}
        used |= {recover.stream for recover in self.recovers}
        used |= {stream for aside in self.asides for stream in (aside.stream, aside.again)}
        used |= {self.copy.stream} if self.copy else set()
        for place, folder in self.folders | self.kept_folders:
            used |= {place, folder.stream}
        for postgres in (self.postgres, self.backup):
            if postgres is not None:
                used |= {stream for stream, _ in postgres.streams} | {
                    row.stream for row in postgres.deliveries
                }
                used |= {row.token for row in postgres.attempts if row.apart}
        return _smallest_beyond_zero_not_in(used)


def _smallest_beyond_zero_not_in(used: set[int]) -> int:
    number = 1
    while number in used:
        number += 1
    return number
