"""Says what the event of a watched topic tells of its message: light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import Message


def place(message: Message) -> dict[str, object]:
    """Return where the message is, and nothing that it says: any message starts a run, and none is kept by Airflow.

    Without this, Airflow takes the text of the value: a message without one makes no event, and of one that is no UTF-8 the
    watcher fails, again and again.
    """
    return {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
