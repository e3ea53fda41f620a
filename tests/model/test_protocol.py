"""The delivery protocol keeps its promises in every interleaving, and needs each guard that it names."""

from __future__ import annotations

import pytest

from etl.common.steps import Step
from tests.support.model.explore import Scenario, moves, search
from tests.support.model.guards import ALL, NEEDED, SPARE, Guard
from tests.support.model.protocol import FOLDED
from tests.support.model.scenarios import CAUGHT_BY, LARGE, SCENARIOS
from tests.support.model.state import Budget, State


@pytest.mark.parametrize("name", SCENARIOS)
def test_protocol_holds_with_the_needed_guards_alone(name: str) -> None:
    found = search(SCENARIOS[name], NEEDED)
    assert found.violation is None, "\n".join((found.violation, *found.trace))


@pytest.mark.parametrize("guard", Guard, ids=lambda guard: guard.name)
def test_protocol_breaks_without(guard: Guard) -> None:
    caught = CAUGHT_BY[guard]
    found = search((SCENARIOS | LARGE)[caught.scenario], caught.others(guard))
    assert found.violation is not None, f"nothing breaks without: {guard}"


@pytest.mark.parametrize("guard", sorted(SPARE), ids=lambda guard: guard.name)
def test_a_second_line_holds_where_those_before_it_are_gone(guard: Guard) -> None:
    caught = CAUGHT_BY[guard]
    assert caught.instead_of, f"a second line stands in for others: {guard}"
    found = search(SCENARIOS[caught.scenario], caught.others(guard) | {guard})
    assert found.violation is None, "\n".join((found.violation, *found.trace))


def test_every_step_of_the_code_is_a_move_of_the_driver_or_folded_into_one() -> None:
    found = search(SCENARIOS["crash"], ALL)
    assert found.steps | FOLDED.keys() == set(Step)
    assert found.steps.isdisjoint(FOLDED)
    assert set(FOLDED.values()) <= found.steps


def test_a_run_left_alone_takes_the_steps_in_the_order_of_the_code() -> None:
    state, steps = State(budget=Budget(starts=1), landed=frozenset((0,))), []
    while following := list(moves(state, ALL, alive=1)):
        (move,) = following
        state = move.after
        steps += [move.step] if move.step else []
    assert steps == [step for step in Step if step not in FOLDED]


def test_a_search_that_is_cut_short_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="more than 10 states"):
        search(Scenario(budget=Budget(starts=1)), ALL, cap=10)
