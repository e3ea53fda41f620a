"""A line of the JSON log tells no secret, wherever in it one is."""

from __future__ import annotations

import json
import logging

from etl.common.json_log import JsonFormatter

SECRET = "jdbc:postgresql://user:hunter2@host/db"


def test_a_secret_is_masked_in_every_value_of_a_line() -> None:
    record = logging.makeLogRecord(
        {
            "msg": "%s",
            "args": (SECRET,),
            "next": SECRET,
            "spark_said": [SECRET, {"cause": (SECRET,)}],
            "exit_code": 70,
        }
    )
    line = JsonFormatter().format(record)
    assert "hunter2" not in line
    told = json.loads(line)
    masked = SECRET.replace("user:hunter2", "***")
    assert told["message"] == told["next"] == masked
    assert told["spark_said"] == [masked, {"cause": [masked]}]
    assert told["exit_code"] == 70
