"""Decides which failures of a task Airflow tries again, and when.

Airflow takes one number of retries, and a policy that its worker asks after each failure (of the policy, the
serialised DAG has but that there is one). Here the number is that of all tries, and the policy tells two kinds of
failure apart: after an outage, or while another run holds the pipeline, the task waits for hours with pauses that
grow; of all other failures it is tried again as often as declared. Which were which is in the task's state store, which
outlives a try, as its XComs do not.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.definitions.retry_policy import RetryDecision
from airflow.sdk.exceptions import AirflowException

from etl.common.wording import pluralize

if TYPE_CHECKING:
    from airflow.sdk import Context

WAITS = 24  # tries that may end with exit code 75: with their pauses, half a day less two hours
FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=2), timedelta(minutes=30)
_WAITED = "sluice_waited"  # the key in the state store


class RunFailed(AirflowException):
    """The run ended with an exit code that another try may mend."""


class ContractBroken(RunFailed):
    """A batch broke its suite (exit 3): it would break it again."""


class NeedsPerson(RunFailed):
    """State that the software must not guess about (exit 4), or a set-up to correct (exit 2)."""


class NoSummary(RunFailed):
    """The command ended with 0 and without its summary: nobody knows what it did, and another try would end so too."""


class DifferencesFound(RunFailed):
    """An audit came to its end, and found the sinks to differ: they would differ again."""


class Ended(RunFailed):
    """Airflow ended the try: marked failed, cleared, timed out, or its worker went down."""


class EndedAfterLong(RunFailed):
    """A run that is to stay up ended after STEADY or longer: it can come up, so the next try comes soon."""


class TryLater(RunFailed):
    """Another run holds the pipeline, or a service is away (exit 75)."""


class Answered(RunFailed):
    """A person answered what this try had asked: the next one goes on by that, at once."""


class NoTriesLeft(RunFailed):
    """Tries that ended without a word, such as those of workers that were killed, have used up the retries."""


FAILURES: dict[int, type[RunFailed]] = {2: NeedsPerson, 3: ContractBroken, 4: NeedsPerson, 75: TryLater}

_FOR_GOOD = {
    "ContractBroken": "a batch broke its contract, and nobody has decided; `sluice decide`, or fix the suite",
    "NeedsPerson": "a person is needed; the log says which command comes next",
    "NoSummary": "the command ended without its summary; `sluice status` says what was delivered",
    "DifferencesFound": "the sinks differ; the log says in what",
    "NoTriesLeft": "the declared retries are used up",
}
AT_ONCE = timedelta(seconds=1)
_BY_A_PERSON = [
    RetryRule(exception=f"{__name__}.{name}", action=RetryAction.FAIL, reason=reason)
    for name, reason in _FOR_GOOD.items()
]
STEADY = timedelta(minutes=10)
OUTAGES = 3  # tries of a run that stays up that may end with exit code 75 before that is told


class Retries(ExceptionRetryPolicy):
    """Tries again after WAITS outages with pauses that grow, and after `retries` other failures.

    The task's own number of retries is `tries_again`.
    """

    def __init__(self, *, retries: int, retry_delay: timedelta) -> None:
        super().__init__(rules=_BY_A_PERSON)
        self.retries = retries
        self.retry_delay = retry_delay
        self.tries_again = retries + WAITS

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        decision = super().evaluate(exception, try_number, max_tries, context)
        if decision.action is RetryAction.FAIL:
            return decision
        waited = waits(context, max_tries)
        if isinstance(exception, Answered):
            return RetryDecision.retry(AT_ONCE, "a person answered")
        if isinstance(exception, TryLater):
            if waited > WAITS:
                return RetryDecision.fail(f"it has waited {WAITS} times")
            reason = "the pipeline is held by another run, or a service is away"
            return RetryDecision.retry(_doubled(FIRST_PAUSE, max(waited, 1)), reason)
        failed = max(self._tries(try_number, max_tries) - waited, 1)
        if failed > self.retries:
            return RetryDecision.fail(
                f"{pluralize(self.retries, 'declared retry is', 'declared retries are')} used up"
            )
        return RetryDecision.retry(
            _doubled(self.retry_delay, failed), f"retry {failed} of {self.retries} declared"
        )

    def require_one_left(self, context: Context) -> None:
        """Raise NoTriesLeft where the tries before this one have failed too often already.

        Of a try whose worker was killed nobody asks the policy: Airflow goes by the number of all tries.
        """
        try_number, max_tries = _place(context)
        failed = self._tries(try_number, max_tries) - 1 - waits(context, max_tries)
        if failed > self.retries:
            raise NoTriesLeft(
                f"{pluralize(failed, 'try has', 'tries have')} failed, the last without a word, and"
                f" {pluralize(self.retries, 'retry is', 'retries are')} declared"
            )

    def _tries(self, try_number: int, max_tries: int) -> int:
        """Count the tries, this one included, since the task was last cleared, which raises `max_tries`."""
        return self.tries_again + try_number - max_tries


def _doubled(first: timedelta, number: int) -> timedelta:
    """Return the pause after that many failures: each twice as long as the one before, up to the longest."""
    doubled: timedelta = first * 2 ** min(number - 1, 20)
    return min(doubled, max(first, LONGEST_PAUSE))


def note_wait(context: Context) -> int:
    """Note that this try ended with exit code 75, or by an answer; return how many have since the task was last cleared.

    Neither is one of the declared retries.
    """
    _, max_tries = _place(context)
    count = waits(context, max_tries) + 1
    if (store := _store(context)) is not None:
        store.set(_WAITED, {"max_tries": max_tries, "count": count})
    return count


def begin_anew(context: Context) -> None:
    """Count no outage from before this try, which had been up for long: what comes is another outage."""
    _, max_tries = _place(context)
    if (store := _store(context)) is not None:
        store.set(_WAITED, {"max_tries": max_tries, "count": 0})


def waits(context: Context | None, max_tries: int) -> int:
    """Return how many tries have ended with exit code 75 since the task was last cleared."""
    store = _store(context)
    noted = store.get(_WAITED) if store is not None else None
    return int(noted["count"]) if noted and noted["max_tries"] == max_tries else 0


def _place(context: Context) -> tuple[int, int]:
    """Return the number of this try, and that of the last one that Airflow would make."""
    ti: Any = context["ti"]
    return max(ti.try_number, 1), ti.max_tries


def _store(context: Context | None) -> Any:
    """Return what outlives a try of the task; None outside of a worker, as in a test of a DAG's parts."""
    return context.get("task_state_store") if context else None


def kept_up(retry_delay: timedelta) -> ExceptionRetryPolicy:
    """Make the retry policy of a run that is to stay up.

    Its delays grow with each try, but for the delay after one that had been up for long.
    """
    steady = RetryRule(
        exception=f"{__name__}.EndedAfterLong",
        action=RetryAction.RETRY,
        retry_delay=retry_delay,
        reason=f"it had been up for {STEADY} or longer",
    )
    answered = RetryRule(
        exception=f"{__name__}.Answered",
        action=RetryAction.RETRY,
        retry_delay=AT_ONCE,
        reason="a person answered",
    )
    return ExceptionRetryPolicy(rules=[*_BY_A_PERSON, steady, answered])
