"""What a web server was asked for, from the lines of its log.

Land generated ones with `sluice land requests`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Append, Files, Pipeline, day

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The Common Log Format, as Apache's mod_log_config has it: host, identity, user, [time], "request", status, bytes.
FORMAT = r'^(\S+) \S+ (\S+) \[([^\]]+)\] "([A-Z]+) (\S+) [^"]*" (\d{3}) (\d{1,18}|-)$'


def requests(df: DataFrame) -> DataFrame:
    """Take the lines of the log apart, one row each.

    One in another format comes as itself, in `unreadable`, for the suite to hold.
    """
    from pyspark.sql import functions as F

    def part(number: int) -> Column:
        """Return a part of the line; null where it is `-`, or where the line is in another format."""
        text = F.regexp_extract("line", FORMAT, number)
        return F.when(~text.isin("", "-"), text)

    at = F.try_to_timestamp(part(3), F.lit("dd/MMM/yyyy:HH:mm:ss Z"))
    return df.select(
        at.alias("at"),
        part(1).alias("address"),
        part(2).alias("name"),
        part(4).alias("method"),
        part(5).alias("path"),
        part(6).cast("int").alias("status"),
        part(7).cast("bigint").alias("bytes"),
        F.when(at.isNull(), F.col("line")).alias("unreadable"),
    )


PIPELINE = Pipeline(
    name="requests",
    sources=(Files("requests/**/*.log", max_files=6),),
    schema="line string",
    transform=requests,
    suite="requests",
    sink=Append(partition_by=day("at")),
    max_quarantine_share=0.2,
    schedule="@hourly",
)
