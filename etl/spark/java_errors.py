"""Tells errors of Spark, Hadoop and Kafka apart, by the one table of what they say.

A worker's or a batch's error reaches the driver as text, so text is what is looked at. What a cause means for a run is
decided by who asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import Any

from etl.common.errors import SluiceError


class Cause(Enum):
    """What an error was caused by; an error may have several causes, such as a state's storage that is away."""

    RECORDS_GONE = auto()  # Kafka no longer has the offsets that were asked for
    TOPIC_GONE = auto()
    KAFKA_REFUSED = auto()  # by TLS, a password, or the rights to a topic
    KAFKA_AWAY = auto()
    KAFKA = auto()  # Kafka, its client or Spark's source of topics, whatever it is
    STATE_SCHEMA = auto()  # the transform keeps a state of another schema than its checkpoint holds
    STATE = auto()  # what a transform keeps between batches can't be read or written
    STATE_PASSING = auto()  # of the state too, and no fault of the checkpoint: the next run may take it up
    STORAGE_AWAY = auto()
    SERVER_UNREACHED = auto()  # what Spark connects to by itself, such as a socket's server
    FILE_GONE = auto()
    FILE_UNREAD = auto()  # a task could not read a file, for a reason that another cause tells
    FILE_DAMAGED = auto()  # the content of a file, or its name, is not what a reader takes
    NAME_REFUSED = (
        auto()
    )  # Hadoop takes it for no name of a file, or of one in a folder that it lists for a glob
    STACK_OVERFLOW = auto()
    WORKER_UNSTARTED = auto()  # there is no Python on an executor, or none that runs a worker
    WORKER_ENDED = auto()  # a Python worker is gone, and has not said why


FILE = "\nfile: "  # in an error of such a reader, before the URI of the file
UNREAD = "^etl.sources.unreadable.FileUnread: ".replace(".", r"\.")  # of a reader of our own
UNFIT = "^etl.sources.unreadable.FileUnfit: ".replace(".", r"\.")  # of a reader of our own
# What the first line of a Java exception has in it: its class and the beginning of its message. They are of Spark 4.3 with
# Hadoop 3.5, Parquet 1.17 and AWS SDK 2.35, and of its source of topics 4.2 with Kafka's client 3.9; some, of earlier ones.
SIGNS: Mapping[Cause, tuple[str, ...]] = {
    Cause.RECORDS_GONE: ("KAFKA_DATA_LOSS", "KafkaIllegalStateException", "OffsetOutOfRangeException"),
    Cause.TOPIC_GONE: ("UnknownTopicOrPartitionException",),
    Cause.KAFKA_REFUSED: (r"^org\.apache\.kafka\.common\.errors\.\w*Auth\w*Exception",),
    Cause.KAFKA_AWAY: (
        r"^org\.apache\.kafka\.common\.errors\.TimeoutException",
        r"^org\.apache\.kafka\.common\.errors\.DisconnectException",
        r"^org\.apache\.kafka\.common\.errors\.NotLeaderOrFollowerException",
        r"^java\.util\.concurrent\.TimeoutException",
    ),
    Cause.KAFKA: (r"org\.apache\.kafka\.", "KAFKA"),
    Cause.STATE_SCHEMA: (
        "SCHEMA_NOT_COMPATIBLE",
        "INVALID_VALUE_SCHEMA_EVOLUTION",
        "INVALID_VARIABLE_TYPE_CHANGE",
    ),
    Cause.STATE: ("STATE_STORE", "STATEFUL_"),
    Cause.STATE_PASSING: ("UNRELEASED_THREAD_ERROR", "OUT_OF_MEMORY", "CANNOT_WRITE_STATE_STORE"),
    # Also the causes of what else looks like a file that ends too early.
    Cause.STORAGE_AWAY: (
        r"^java\.net\.(?!URISyntaxException)",
        r"^javax\.net\.",
        r"^java\.nio\.file\.AccessDenied",
        r"^software\.amazon\.awssdk\.",
        r"^com\.amazonaws\.",
        r"^org\.apache\.hadoop\.fs\.s3a\.",
        r"^org\.apache\.hadoop\.net\.",
        r"^org\.apache\.hadoop\.hdfs\.",
        r"^org\.apache\.hadoop\.ipc\.",
        r"^org\.apache\.http\.",
    ),
    Cause.SERVER_UNREACHED: (
        r"^java\.net\.ConnectException",
        r"^java\.net\.UnknownHostException",
        r"^java\.net\.NoRouteToHostException",
        r"^java\.net\.SocketException",
    ),
    Cause.FILE_GONE: (
        r"FAILED_READ_FILE\.FILE_NOT_EXIST",
        "PATH_NOT_FOUND",
        f"{UNREAD}FileNotFoundError",
    ),
    Cause.FILE_UNREAD: ("FAILED_READ_FILE", UNFIT, UNREAD),
    # The errors of decoders are known; of storages there are too many, and each has errors of its own. So what is not known
    # as damage is an outage: a run that stops in vain can be had again, and rows that were left out for an outage can't.
    Cause.FILE_DAMAGED: tuple(
        f"(?i)^{sign}"
        for sign in (
            # gzip and deflate, by Hadoop and by zlib
            r"java\.io\.EOFException: Unexpected end of input stream",
            r"java\.io\.EOFException: Unexpected end of ZLIB input stream",
            r"java\.io\.EOFException: Unexpected end of block in input stream",
            r"java\.io\.IOException: not a gzip file",
            r"java\.io\.IOException: gzip (?:data not compressed|header CRC failure|stream CRC failure)",
            r"java\.io\.IOException: unknown gzip format",
            r"java\.io\.IOException: stored gzip size doesn't match",
            r"java\.io\.IOException: header crc mismatch",
            r"java\.io\.IOException: too many length",
            r"java\.io\.IOException: incorrect (?:header|data|length) check",
            r"java\.io\.IOException: unknown (?:compression|header)",
            r"java\.io\.IOException: invalid (?:distance|block|stored|code|bit|literal|window)",
            r"java\.util\.zip\.",
            # bzip2
            r"java\.io\.IOException: unexpected end of stream",
            r"java\.io\.IOException: bad block header",
            r"java\.io\.IOException: crc error",
            r"java\.io\.IOException: stream corrupted",
            r"java\.io\.IOException: block overrun",
            r"java\.io\.IOException: Stream is not BZip2",
            # zstd, lz4, snappy
            r"com\.github\.luben\.zstd\.Zstd",
            r"net\.jpountz\.lz4\.",
            r"org\.xerial\.snappy\.Snappy",
            r"io\.airlift\.compress\.",
            r"java\.(?:io\.IOException|lang\.InternalError): Compressed ",
            r"java\.(?:io\.IOException|lang\.InternalError): Could not decompress",
            r"java\.(?:io\.IOException|lang\.InternalError): FAILED_TO_UNCOMPRESS",
            r"java\.(?:io\.IOException|lang\.InternalError): Corrupt",
            # Parquet: footers, pages, and columns that are not as declared
            r"java\.lang\.RuntimeException: .*is not a Parquet file",
            r"java\.lang\.RuntimeException: .*corrupted file",
            r"java\.lang\.RuntimeException: .*footer is too large",
            r"java\.io\.EOFException: Reached the end of stream with",
            r"java\.io\.IOException: Expected \d+ values in column chunk",
            r"java\.lang\.ClassNotFoundException: org\.apache\.hadoop\.io\.compress\.",
            r"org\.apache\.parquet\.",
            r"shaded\.parquet\.org\.apache\.thrift\.",
            r"org\.apache\.spark\.sql\.execution\.datasources\.SchemaColumnConvertNotSupportedException",
            UNFIT,
            # a checksum beside a local file, which Hadoop keeps of those that it writes
            r"org\.apache\.hadoop\.fs\.ChecksumException",
            # what a decoder stumbles over and no storage
            r"java\.lang\.(?:Array|String)?IndexOutOfBoundsException",
            r"java\.lang\.NegativeArraySizeException",
            r"java\.lang\.ArrayStoreException",
            r"java\.lang\.ArithmeticException",
            r"java\.lang\.ClassCastException",
            r"java\.lang\.NumberFormatException",
            r"java\.nio\.charset\.",
            r"java\.nio\.BufferUnderflowException",
            # a name that Spark can't have, such as a local one with a colon, and the file has it forever
            r"java\.net\.URISyntaxException",
        )
    ),
    Cause.NAME_REFUSED: (r"^java\.net\.URISyntaxException",),
    Cause.STACK_OVERFLOW: (r"java\.lang\.StackOverflowError",),
    Cause.WORKER_UNSTARTED: (
        r"^java\.io\.IOException: Cannot run program .*error=(?:2|13),",  # of a lack of memory it is another
    ),
    Cause.WORKER_ENDED: (
        r"Python worker exited unexpectedly",
        r"occurred while reading the port number from \S+daemon",
        r"^java\.io\.IOException: Cannot run program .*error=(?!2,|13,)",
    ),
}
_SCHEMAS = "StructType"  # is in the line of a message that names both schemas of a state


def classify(error: BaseException) -> dict[Cause, str]:
    """Return the causes of an error, each with the line that tells it; none of an error that is Sluice's own.

    A file counts as damaged by the cause of all, for a decoder hands on what its storage says; and where no storage is
    known to be away, for a connection that ends too early is no file that does.
    """
    lines_by_cause: dict[Cause, str] = {}
    if isinstance(error, SluiceError):
        return lines_by_cause
    exceptions = [raised(message).splitlines() for message in messages(error)]
    for lines in exceptions:
        for cause in Cause:
            if cause in lines_by_cause or (cause is Cause.FILE_DAMAGED and lines is not exceptions[-1]):
                continue
            if any(re.search(sign, lines[0]) for sign in SIGNS[cause]):
                lines_by_cause[cause] = lines[0]
                if cause is Cause.STATE_SCHEMA:
                    lines_by_cause[cause] = next((line for line in lines[1:] if _SCHEMAS in line), lines[0])
    if Cause.STORAGE_AWAY in lines_by_cause:
        lines_by_cause.pop(Cause.FILE_DAMAGED, None)
    return lines_by_cause


def causes(error: Any) -> Iterator[str]:
    """Yield the first line of each Java exception, from the outermost to the cause of all."""
    return (message.splitlines()[0] for message in messages(error))


def messages(error: Any) -> Iterator[str]:
    """Yield all that each Java exception says, from the outermost to the cause of all.

    Of an error that holds no Java exception, yield its own text. Within foreachBatch PySpark's errors may come as py4j's.
    """
    exceptions = list(_exceptions(error))
    if not exceptions:
        yield str(error).strip() or type(error).__name__
    for java in exceptions:
        yield str(java.toString()).strip()


def is_of_java(error: BaseException) -> bool:
    """Tell whether an error holds a Java exception."""
    return next(_exceptions(error), None) is not None


def memory_line(log: Iterable[str]) -> str | None:
    """Return the line of a JVM's log that says that it had no memory left; None where none does."""
    return next((line for line in log if "java.lang.OutOfMemoryError" in line), None)


def paths_in(error: Any) -> Iterator[str]:
    """Yield the paths of files that exceptions of Spark, or of our readers, are of, as they name them, outermost first."""
    for java in _exceptions(error):
        said = raised(str(java.toString()).strip())
        if re.match(f"{UNFIT}|{UNREAD}", said) and FILE in said:
            yield said.partition(FILE)[2].splitlines()[0]
        if hasattr(java, "getMessageParameters") and (path := java.getMessageParameters().get("path")):
            yield str(path)


def _exceptions(error: Any) -> Iterator[Any]:
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None:
        yield java
        java = java.getCause()


def raised(message: str) -> str:
    """Return what was raised in a Python worker, without its traceback; any other message as it is."""
    if "thrown from the Python worker" not in message.partition("\n")[0]:
        return message
    lines = message.partition("\n SQLSTATE:")[0].splitlines()
    last = max(number for number, line in enumerate(lines) if number == 0 or line.startswith("  "))
    return "\n".join(lines[last + 1 :]) or message
