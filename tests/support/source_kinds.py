"""What every kind of source holds to, as tests that each kind's own class takes over.

A kind says how its source is filled and read. What it promises is what its pipeline declares: what is not replayable
is read once, by whichever run has it, and says so.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from etl.common.errors import NeedsPerson, SetupError
from etl.common.steps import Step
from etl.runs.kinds.base import PipelineStream
from etl.runs.kinds.open import stream_of
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from etl.runs.summary import Summary
from tests.support.data.orders import NAME
from tests.support.followed import PATIENCE, Followed, rows_read
from tests.support.home import Home, failing_at
from tests.support.waiting import until


@dataclass(kw_only=True)
class Filled(ABC):
    """A pipeline of one kind of source, which is filled as the test says."""

    home: Home
    name: str = NAME
    replayable: bool = True
    foreseen: bool = False  # what the next run will read is known before it
    given: int = 0  # so many records were made available
    wanted: Counter[int] = field(
        default_factory=Counter
    )  # the numbers of those that must be delivered, from 0

    @abstractmethod
    def give(self, count: int) -> None:
        """Make so many more records available, at once."""

    @abstractmethod
    def run(self) -> Summary:
        """Deliver what is available."""

    def number(self, count: int) -> range:
        """Return the numbers of the next records."""
        self.given += count
        return range(self.given - count, self.given)

    @property
    def stream(self) -> PipelineStream[Any]:
        return stream_of(self.home.place, self.home.pipeline(self.name))

    def awaited(self, summary: Summary) -> int:
        """Count the files that are known to be read next."""
        return len(self.stream.awaited(summary.stream))

    def nothing_new(self, summary: Summary) -> bool:
        stream = self.stream
        return stream.nothing_new(stream.state(summary.stream), stream.awaited(summary.stream))

    def recorded(self) -> int:
        """Count the inputs on record, of all deliveries in force: files, and ranges of offsets that are not empty."""
        [(count,)] = self.home.ask(
            "SELECT (SELECT count(*) FROM sluice.delivery_input JOIN sluice.delivery d USING (delivery_id) WHERE d.live)"
            " + (SELECT count(*) FROM sluice.delivery_range r JOIN sluice.delivery d USING (delivery_id)"
            "    WHERE d.live AND r.end_offset > r.start_offset)"
        )
        return int(count)

    def assert_delivered(self) -> None:
        """Require each record in both sinks as often as it must be, and that ledger and sinks agree."""
        eyes = self.home.reader(self.name)
        in_postgres, on_lake = eyes.in_postgres(system=()), eyes.on_lake(system=())
        assert in_postgres == on_lake
        assert Counter(row[0] for row in in_postgres.elements()) == self.wanted
        self.home.assert_one_history(self.name)
        self.home.assert_clean(self.name)


@dataclass(kw_only=True)
class FilledLive(Filled):
    """A source that hands over what comes while a run is up: what no run has delivered is not wanted of the next."""

    follow: Callable[[str], Followed]
    replayable: bool = False
    waiting: int = 0  # records that the next run has to deliver

    def give(self, count: int) -> None:
        self.waiting += count

    def run(self) -> Summary:
        """Follow the source until what was given is delivered, or it fails; then nothing is waiting any more."""
        up, aim = self.follow(self.name), rows_read(self.home, self.name) + self.waiting
        count, self.waiting = self.waiting, 0
        sent = self.hand_over(count)
        until(lambda: up.results or rows_read(self.home, self.name) >= aim, f"{aim} rows", patience=PATIENCE)
        if up.results:
            raise up.error()
        done = up.stop()
        self.wanted.update(sent if sent is not None else range(done.delivered))
        return done

    @abstractmethod
    def hand_over(self, count: int) -> range | None:
        """Send so many records to the run that is up, and return their numbers; None: it counts from 0 by itself."""


class SourceKindContract:
    """A subclass has the fixture `filled`."""

    def test_what_is_available_is_told_before_spark_is_asked_where_it_can_be_known(
        self, filled: Filled
    ) -> None:
        filled.give(4)
        done = filled.run()
        assert filled.awaited(done) == 0
        assert filled.nothing_new(done) is filled.foreseen, "what can't be known is never taken for nothing"
        filled.give(3)
        assert filled.awaited(done) == (1 if filled.foreseen else 0)
        assert not filled.nothing_new(done)
        stream = filled.stream
        assert stream.is_little(done.stream, stream.awaited(done.stream)) is filled.foreseen, (
            "a JVM is launched for little by it"
        )

    def test_what_a_batch_read_is_on_record_and_is_read_again_or_a_replay_says_why_not(
        self, filled: Filled
    ) -> None:
        filled.give(6)
        done = filled.run()
        home, pipeline = filled.home, filled.home.pipeline(filled.name)
        assert pipeline.replayable is filled.replayable
        chosen = Selection(deliveries=tuple((number, number) for number in done.deliveries))
        if not filled.replayable:
            assert filled.recorded() == 0
            with pytest.raises(SetupError, match="which can't be read again, as a replay would"):
                plan(home.place, pipeline, chosen, spark=home.spark)
            return
        recorded = filled.recorded()
        assert recorded > 0
        planned = plan(home.place, pipeline, chosen, spark=home.spark)
        assert (planned.changed, planned.gone) == ([], [])
        again = replay(home.place, pipeline, planned, who="tests", spark=home.spark)
        assert set(again.replaced) == set(done.deliveries)
        assert filled.recorded() > 0
        filled.assert_delivered()

    def test_from_run_to_run_nothing_is_read_twice_or_passed_over(self, filled: Filled) -> None:
        filled.give(5)
        first = filled.run()
        filled.assert_delivered()
        filled.give(4)
        with failing_at(Step.INPUTS_INSERTED):
            filled.run()
        filled.give(3)
        second = filled.run()
        assert (second.stream == first.stream) is filled.replayable, (
            "what is not replayable has a stream for each run"
        )
        filled.assert_delivered()

    def test_a_lost_checkpoint_is_recovered_from_or_is_no_loss(self, filled: Filled) -> None:
        filled.give(5)
        first = filled.run()
        filled.give(4)
        shutil.rmtree(filled.home.checkpoint(first.stream, filled.name))
        if filled.replayable:
            with pytest.raises(NeedsPerson) as refused:
                filled.run()
            assert f"sluice recover {filled.name}" in refused.value.remedy
        done = filled.home.recover(filled.name)
        assert (done.problem is not None) is filled.replayable
        second = filled.run()
        assert second.stream != first.stream
        assert done.stream == (second.stream if filled.replayable else None)
        filled.assert_delivered()
