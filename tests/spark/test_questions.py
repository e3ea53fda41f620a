"""What a person is asked about a stopped batch, and what becomes of an answer that comes too late."""

from __future__ import annotations

import pytest

from etl.airflow.command.question import act, question_of, settled
from etl.airflow.command.tries import recorded
from etl.airflow.questions.question import Answer, Question
from etl.airflow.task_try import TaskTry
from etl.common.errors import ContractBroken, NeedsPerson, SetupError
from etl.ledger.decisions import decide_on_stop
from tests.support.data.orders import RULES, Order
from tests.support.home import Home

TRY = TaskTry(dag_id="orders", dag_run_id="r", task_id="run", try_number=1, run_type="manual", clear_number=0)


def stopped(home: Home) -> Question:
    """Let a run stop, as Airflow has it made; return what a person is asked."""
    with pytest.raises(ContractBroken), recorded(home.dsn, "orders", TRY):
        home.run()
    found = question_of(home.place, home.pipeline(), TRY, "/data-quality/orders/stopped")
    assert found is not None
    return found


def test_an_answer_covers_the_very_stop_that_was_asked_about_and_no_other(home: Home) -> None:
    home.declare()
    landed = home.land("orders/0.jsonl", [Order(id=None), Order(id=1), Order(id=2, amount=-1.0)])
    first = stopped(home)
    assert first.titles == [
        "Hold the bad rows, deliver the rest",
        "Deliver the batch as it is",
        "Try again",
        "Leave it",
    ]
    assert "- id is given failed\\: 1 of 3 rows break it" in first.body
    assert "| amount is not negative | 1 |" in first.body
    assert "(/data-quality/orders/stopped)" in first.body
    dsn, pipeline = home.dsn, home.pipeline()
    assert settled(dsn, "orders", first.stop) is None

    second = stopped(home)
    assert "has stopped once more" in str(settled(dsn, "orders", first.stop))
    accept = Answer(action="accept", who="ada", why="they are known")
    assert "has stopped once more since this was asked" in act(home.place, pipeline, first.stop, accept)
    assert home.ask("SELECT decision FROM sluice.stopped_batch") == [(None,)]

    hold = Answer(action="quarantine-all", who="bob", why="no id")
    assert "its failing rows are held" in act(home.place, pipeline, second.stop, hold)
    assert "was decided on meanwhile: quarantine-all, by bob" in str(settled(dsn, "orders", second.stop))
    assert "was decided on meanwhile: quarantine-all, by bob. Nothing was changed" in act(
        home.place, pipeline, second.stop, accept
    )
    decided = "SELECT decision, decided_by, why FROM sluice.stopped_batch"
    assert home.ask(decided) == [("quarantine-all", "bob", "no id")]

    home.run()
    assert "is stopped no more" in str(settled(dsn, "orders", second.stop))
    assert "is stopped no more" in act(home.place, pipeline, second.stop, accept)
    home.judge(*RULES)
    home.assert_holds(landed)


def test_a_question_tells_no_value_of_a_record(home: Home) -> None:
    home.declare(share=0.1)
    home.write("orders/0.jsonl", '{"id": "4711 0815"}\n{"id": "4711 0816"}\n')
    body = stopped(home).body
    assert "Records are malformed" in body
    assert "4711" not in body


def test_what_left_no_batch_to_decide_on_is_asked_about_in_its_own_words_and_a_replay_not(home: Home) -> None:
    home.declare()
    home.land("orders/0.jsonl", [Order(id=1)])
    home.write("reference/shops.csv", "shop,city\n1,<b>a</b>\n1,b\n")
    with pytest.raises(NeedsPerson, match="shops"), recorded(home.dsn, "orders", TRY):
        home.run()
    asked = question_of(home.place, home.pipeline(), TRY, "")
    assert asked is not None
    assert (asked.titles, asked.stop) == (["Try again", "Leave it"], None)
    replays = TaskTry(
        dag_id="orders_replays", dag_run_id="r", task_id="run", try_number=1, run_type="manual", clear_number=0,
        beside=True, deliveries="1",
    )  # fmt: skip
    assert question_of(home.place, home.pipeline(), replays, "") is None
    with pytest.raises(SetupError, match="its reason"):
        decide_on_stop(home.dsn, "orders", batch=0, stream=None, action="accept", who="ada", why=" ")
