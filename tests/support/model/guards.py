"""The protocol's guards: what each one demands. A scenario catches the removal of every one of them (`CAUGHT_BY`)."""

from __future__ import annotations

from enum import StrEnum


class Guard(StrEnum):
    # in the commit, under the lock of the pipeline's row
    ONE_TRANSACTION = "both sinks and the ledger change in one transaction"
    TOKEN = "the lease's token is still this run's"
    CURRENT_STREAM = "a commit needs its stream to be the pipeline's current one"
    INPUTS_UNIQUE = "no input is in two live deliveries"
    NUMBER_UNIQUE = (
        "a delivery id is one delivery's, of whatever pipeline (a restored sequence gives ids again)"
    )
    POINTER_CAS = "the pointer is still the one that the draft was built on, else draft again"
    # of a replay or a release, in its commit
    APART_OPEN = "its attempt is open: nobody gave its run up, and PostgreSQL knows it"
    APART_LIVE = "what it replaces is still live"
    APART_SINCE = "no row of what it replaces was released since its plan"
    APART_HELD = "the row that it lets out is still held"
    WITHDRAWAL_LEASE = (
        "a withdrawal, which makes another stream the current one, still has the stream's lease"
    )
    # around it
    UNIQUE_NAMES = "objects' names hold something random of their attempt, not only a number from PostgreSQL"
    NUMBER_SKIPS = "after a restore delivery ids go on behind the highest that the lake has, of any pipeline"
    INPUTS_SAME = "a batch found delivered must have been delivered from the same inputs"
    UNKNOWN_READS = "after a connection lost in COMMIT: read the ledger instead of assuming"
    # at the start of a run
    MARKER = "the ledger has what the lake's marker names (a run that stays up looks again after a restore)"
    CHECK_STREAM = "each stream that has a checkpoint folder is registered in the ledger"
    CHECK_BEHIND = "the checkpoint has no commit mark beyond the ledger's last batch"
    CHECK_AHEAD = "the ledger has no batch beyond the checkpoint's last offset"
    CHECK_INPUTS = "what the checkpoint counts as read, up to the ledger's last batch, is delivered"
    CHECK_DAMAGE = "the checkpoint's parts agree with each other"
    # recover
    RECOVER_NAMES = "recover names what is lost: neither delivered, nor to be put back, nor to be read again"
    FORWARD_SPARES = "recover commits no attempt again that the sweeper may delete"
    # sweep
    SWEEP_KNOWN = "only objects of attempts that PostgreSQL knows"
    SWEEP_FENCED = "only objects of attempts that are no longer open"
    SWEEP_FENCED_BEFORE = "... and were not open in the oldest backup that could be restored"
    SWEEP_RETAINED = "nothing that a pointer within the backup horizon refers to"
    SWEEP_LOCKS = "it decides under the lock of the pipeline's row"
    SWEEP_READS_LAST = "it reads the pointers after it has decided"
    METADATA_NAMED = "metadata objects carry their attempt's name and are swept by the same rule as its data"
    # second lines of defence: each stands in for others, see docs/decisions/0001-protocol-model.md
    ATTEMPT_OPEN = "a commit needs its attempt's own row, open"
    CHECK_CURRENT = "the current stream's folder holds that stream's checkpoint"
    CONTINUITY = "the stream's last delivery is batch N-1, or N is its registered first"
    BATCH_UNIQUE = "one delivery for each (stream, batch)"
    RANDOM_TOKEN = "a lease's token is random, not counted in PostgreSQL"
    SKIP_NEEDS_LEASE = "a batch found delivered is passed over only while the lease is ours"
    UNKNOWN_WAITS = "after a connection lost in COMMIT: lock the pipeline's row before reading the ledger"
    RECOVER_LEASE = "recover takes the lease first"
    SEED_LOCKED = "the seed is read in the transaction that registers the stream, not earlier"
    RECOVER_RECHECK = "recover registers the new stream only while the lease is still its own"
    FORWARD_ATTEMPT = "recover opens an attempt of its own before it drafts metadata"
    SWEEP_LISTS_FIRST = "it lists the objects before it decides"
    SWEEP_REFUSES = "it refuses while a stop is open"


Guards = frozenset[Guard]
ALL: Guards = frozenset(Guard)
SPARE: Guards = frozenset(
    (
        Guard.ATTEMPT_OPEN,
        Guard.APART_LIVE,
        Guard.CONTINUITY,
        Guard.SEED_LOCKED,
        Guard.CHECK_CURRENT,
        Guard.BATCH_UNIQUE,
        Guard.SKIP_NEEDS_LEASE,
        Guard.UNKNOWN_WAITS,
        Guard.RANDOM_TOKEN,
        Guard.RECOVER_LEASE,
        Guard.RECOVER_RECHECK,
        Guard.FORWARD_ATTEMPT,
        Guard.SWEEP_LISTS_FIRST,
        Guard.SWEEP_REFUSES,
    )
)
NEEDED: Guards = ALL - SPARE
