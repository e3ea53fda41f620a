"""Where each guard is in the code, and which test shows it there; tests/model/test_places.py holds this against both."""

from __future__ import annotations

from dataclasses import dataclass

from .guards import Guard


@dataclass(frozen=True, slots=True)
class Place:
    """The function that has a guard, and the test of the code that fails or changes without it."""

    module: str
    function: str  # by its name in the module; a method behind its class
    test: str  # file::name; of one with cases, all of them


LEDGER = "tests/service/test_ledger.py"
LOST = "tests/service/test_lost_deliveries.py"
OUTAGES = "tests/service/test_outages.py"
RECOVER = "tests/service/test_recover.py"
SWEEP = "tests/service/test_sweep.py"
TWO = "tests/service/test_two_at_once.py"
REMEDIES = "tests/spark/test_remedies.py"

COMMIT = "etl.delivery.commit"
CORRECTION = "etl.delivery.correction"
DELIVER = "etl.delivery.deliver"
LEASES = "etl.ledger.leases"
PREFLIGHT = "etl.runs.preflight"
LOST_DELIVERIES = "etl.runs.recovery.lost_deliveries"
SWEEPER = "etl.operations.maintenance.sweep"

IN_CODE: dict[Guard, Place] = {
    # in the commit
    Guard.ONE_TRANSACTION: Place(
        COMMIT, "_transact", "tests/crash/test_crash_matrix.py::test_killed_and_run_again"
    ),
    Guard.TOKEN: Place(
        LEASES, "lock_for_commit", f"{LEDGER}::test_a_run_that_is_robbed_before_its_commit_is_fenced"
    ),
    Guard.CURRENT_STREAM: Place(LEASES, "lock_for_commit", f"{LEDGER}::test_only_the_current_stream_commits"),
    Guard.CONTINUITY: Place(LEASES, "lock_for_commit", f"{LEDGER}::test_a_batch_before_its_time_is_refused"),
    Guard.INPUTS_UNIQUE: Place(
        "etl.delivery.ledger_entry",
        "insert_inputs",
        f"{LEDGER}::test_an_input_is_delivered_once_whatever_batch_it_comes_in",
    ),
    Guard.NUMBER_UNIQUE: Place(
        "etl.delivery.ledger_entry",
        "insert_delivery",
        f"{LOST}::test_a_delivery_id_is_one_deliverys_of_whatever_pipeline",
    ),
    Guard.POINTER_CAS: Place(
        "etl.sinks.lake.table", "LakeTable.swap", f"{LEDGER}::test_a_pointer_that_moved_is_drafted_again"
    ),
    Guard.ATTEMPT_OPEN: Place(
        "etl.ledger.attempts",
        "close_attempt",
        f"{LEDGER}::test_only_an_open_attempt_of_its_own_run_commits",
    ),
    # of a replay or a release
    Guard.APART_OPEN: Place(
        CORRECTION,
        "Correction.lock",
        f"{TWO}::test_a_replay_that_was_given_up_while_it_stages_says_to_run_it_again",
    ),
    Guard.APART_LIVE: Place(
        CORRECTION,
        "Correction.supersede",
        "tests/spark/test_replay.py::test_of_two_replays_of_one_batch_one_takes_place",
    ),
    Guard.APART_SINCE: Place(
        CORRECTION,
        "_refuse_released_since",
        "tests/spark/test_release.py::test_a_row_that_is_released_while_its_batch_is_replayed_is_not_held_once_more",
    ),
    Guard.APART_HELD: Place(
        CORRECTION,
        "Correction.supersede",
        "tests/spark/test_release.py::test_of_two_releases_at_once_one_delivers",
    ),
    # around the commit
    Guard.UNIQUE_NAMES: Place(
        "etl.sinks.warehouse.staging",
        "StagingTables.packed",
        f"{LOST}::test_what_a_lost_delivery_wrote_is_not_overwritten_under_its_number",
    ),
    Guard.NUMBER_SKIPS: Place(
        "etl.sinks.lake.numbers",
        "free_numbers",
        f"{LOST}::test_a_number_that_was_lost_is_given_to_nobody_else",
    ),
    Guard.INPUTS_SAME: Place(
        DELIVER, "_delivered_before", f"{LEDGER}::test_the_same_batch_with_other_inputs_is_refused"
    ),
    Guard.BATCH_UNIQUE: Place(DELIVER, "deliver", f"{LEDGER}::test_a_delivered_batch_is_not_delivered_again"),
    Guard.SKIP_NEEDS_LEASE: Place(
        DELIVER,
        "_delivered_before",
        f"{LEDGER}::test_a_zombie_is_fenced_even_when_it_asks_for_a_delivered_batch",
    ),
    Guard.UNKNOWN_READS: Place(
        COMMIT, "_was_committed", f"{OUTAGES}::test_a_cut_that_swallows_the_answer_is_a_commit"
    ),
    Guard.UNKNOWN_WAITS: Place(
        COMMIT, "_was_committed", f"{OUTAGES}::test_a_number_that_is_anothers_by_now_is_no_commit"
    ),
    Guard.WITHDRAWAL_LEASE: Place(
        "etl.ledger.streams",
        "register_stream",
        "tests/spark/test_going_back.py::test_what_ends_it_has_changed_nothing_or_left_nothing_to_be_done",
    ),
    Guard.RANDOM_TOKEN: Place(
        LEASES, "take_lease", f"{LOST}::test_a_run_whose_lease_the_database_lost_is_fenced_by_the_next"
    ),
    # at the start of a run
    Guard.MARKER: Place(
        "etl.sinks.lake.marker",
        "went_back",
        f"{LOST}::test_a_restored_database_is_noticed_without_a_checkpoint",
    ),
    Guard.CHECK_STREAM: Place(
        PREFLIGHT, "unknown_streams", f"{LOST}::test_a_stream_that_the_ledger_lost_is_noticed_and_known_again"
    ),
    Guard.CHECK_CURRENT: Place(
        PREFLIGHT, "unfit", f"{REMEDIES}::test_another_pipelines_checkpoint_is_not_taken_for_ones_own"
    ),
    Guard.CHECK_BEHIND: Place(
        PREFLIGHT,
        "_out_of_step",
        f"{RECOVER}::test_a_checkpoint_that_is_ahead_of_the_ledger_shows_by_itself_that_deliveries_were_lost",
    ),
    Guard.CHECK_AHEAD: Place(
        PREFLIGHT, "_out_of_step", f"{REMEDIES}::test_a_checkpoint_restored_to_an_earlier_state_is_replaced"
    ),
    Guard.CHECK_INPUTS: Place(
        "etl.runs.kinds.files",
        "FileStream._read_otherwise",
        "tests/spark/test_replay_history.py::test_an_earlier_start_hands_the_stream_what_was_not_loaded",
    ),
    Guard.CHECK_DAMAGE: Place(
        PREFLIGHT, "unfit", f"{REMEDIES}::test_a_checkpoint_without_a_part_is_replaced"
    ),
    # recover
    Guard.SEED_LOCKED: Place(
        "etl.runs.kinds.files",
        "_seeded",
        f"{RECOVER}::test_what_is_committed_while_a_stream_is_seeded_is_in_the_seed",
    ),
    Guard.RECOVER_NAMES: Place(
        "etl.runs.recovery.stranded",
        "refuse_stranded",
        f"{LOST}::test_a_lost_delivery_behind_one_that_is_not_whole_is_named",
    ),
    Guard.RECOVER_LEASE: Place(
        "etl.runs.recovery.recover", "recover", f"{RECOVER}::test_nothing_is_recovered_beside_a_living_run"
    ),
    Guard.RECOVER_RECHECK: Place(
        "etl.ledger.streams",
        "register_stream",
        f"{LEDGER}::test_a_run_that_was_robbed_makes_no_stream_the_current_one",
    ),
    Guard.FORWARD_SPARES: Place(
        LOST_DELIVERIES, "_judged", f"{LOST}::test_an_attempt_that_failed_after_its_manifest_needs_nobody"
    ),
    Guard.FORWARD_ATTEMPT: Place(
        LOST_DELIVERIES,
        "restore_delivery",
        f"{SWEEP}::test_an_attempt_that_recover_adopted_keeps_its_objects_until_it_is_delivered",
    ),
    # sweep
    Guard.SWEEP_KNOWN: Place(
        SWEEPER, "_choose", f"{SWEEP}::test_objects_of_attempts_that_postgresql_does_not_know_stay"
    ),
    Guard.SWEEP_FENCED: Place(SWEEPER, "_choose", f"{SWEEP}::test_an_open_attempt_keeps_its_objects"),
    Guard.SWEEP_FENCED_BEFORE: Place(
        SWEEPER, "_choose", f"{SWEEP}::test_an_attempt_that_ended_within_the_horizon_keeps_its_objects"
    ),
    Guard.SWEEP_RETAINED: Place(
        "etl.sinks.lake.references",
        "retained_pointers",
        f"{SWEEP}::test_what_a_delivery_published_is_read_within_the_horizon_when_its_snapshot_has_left_the_table",
    ),
    Guard.SWEEP_LOCKS: Place(
        SWEEPER,
        "_decide",
        f"{SWEEP}::test_a_sweep_waits_for_the_commit_under_way_and_reads_the_pointers_after_it",
    ),
    Guard.SWEEP_READS_LAST: Place(
        SWEEPER,
        "_decide",
        f"{SWEEP}::test_a_sweep_waits_for_the_commit_under_way_and_reads_the_pointers_after_it",
    ),
    Guard.SWEEP_LISTS_FIRST: Place(
        SWEEPER, "sweep_lake", f"{SWEEP}::test_what_is_written_after_the_sweep_has_listed_stays"
    ),
    Guard.SWEEP_REFUSES: Place(
        SWEEPER, "_refuse", f"{SWEEP}::test_nothing_is_swept_when_the_checkpoint_does_not_fit"
    ),
    Guard.METADATA_NAMED: Place(
        "etl.sinks.lake.references",
        "owner_of",
        f"{SWEEP}::test_metadata_of_another_run_with_the_same_number_stays",
    ),
}
