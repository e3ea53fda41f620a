"""Tells why Kafka did not give what a batch was to read."""

from __future__ import annotations

from collections.abc import Sequence

from etl.common.errors import RecordsMissing, ServiceAway, SetupError
from etl.sources.kafka.cluster import SEE_RIGHTS
from etl.spark.java_errors import Cause, classify


def is_of_kafka(error: BaseException) -> bool:
    """Tell whether an error comes from Kafka, its client or Spark's source of topics."""
    return Cause.KAFKA in classify(error)


def raise_read_error(pipeline: str, errors: Sequence[BaseException], retry: str) -> None:
    """Raise an error that says why Kafka did not give what was asked for; return if no error comes from Kafka.

    RecordsMissing: it is gone. SetupError: Kafka refuses it. ServiceAway: Kafka is not there at the moment.
    `retry` is the command to go on.
    """
    for error in errors:
        causes = classify(error)
        if lost := causes.get(Cause.RECORDS_GONE):
            raise RecordsMissing(
                f"Kafka did not give {pipeline} what it was to read: {lost}",
                remedy=f"{retry} says what is gone",
            ) from error
        if deleted := causes.get(Cause.TOPIC_GONE):
            raise RecordsMissing(
                f"A topic of {pipeline} was deleted while it was read: {deleted}",
                remedy=f"{retry} says which",
            ) from error
        if refused := causes.get(Cause.KAFKA_REFUSED):
            raise SetupError(
                f"Kafka refuses {pipeline}: {refused}",
                remedy=SEE_RIGHTS,
            ) from error
        if unanswered := causes.get(Cause.KAFKA_AWAY):
            raise ServiceAway(
                f"Kafka did not answer {pipeline}: {unanswered}; nothing of the batch under way was delivered",
                remedy=f"check that the brokers are running; then {retry}",
            ) from error
