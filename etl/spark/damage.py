"""What a failed reading of a file was the fault of: of the file's content, or of the storage that was to give it.

The errors of decoders are known; of storages there are too many, and each has errors of its own. So what is not known as
damage is an outage: a run that stops in vain can be had again, and rows that were left out for an outage can't.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Also the causes of what else looks like a file that ends too early.
STORAGE_AWAY = (
    "java.net.",
    "javax.net.",
    "software.amazon.awssdk.",
    "com.amazonaws.",
    "org.apache.hadoop.fs.s3a.",
    "org.apache.hadoop.net.",
    "org.apache.hadoop.hdfs.",
    "org.apache.hadoop.ipc.",
    "org.apache.http.",
    "java.nio.file.AccessDenied",
)
_UNNAMEABLE = "java.net.URISyntaxException"  # of a local file with a colon in its name, and it has it forever

# By Spark's readers and the decoders below them, as Spark 4.3 tells it: the class, and what it says.
_DAMAGE = re.compile(
    # gzip and deflate, by zlib and by Java
    r"java\.io\.EOFException: Unexpected end of (?:ZLIB |block in )?input stream"
    r"|java\.io\.IOException: (?:not a gzip file|gzip stream CRC failure|header crc mismatch|too many length"
    r"|incorrect (?:header|data|length) check|unknown (?:compression|header)"
    r"|invalid (?:distance|block|stored|code|bit|literal|window))"
    r"|java\.util\.zip\."
    # bzip2
    r"|java\.io\.IOException: (?:unexpected end of stream|bad block header|crc error|block overrun|Stream is not BZip2)"
    # zstd, snappy, lz4
    r"|com\.github\.luben\.zstd\.Zstd|net\.jpountz\.lz4\.|org\.xerial\.snappy\.Snappy|io\.airlift\.compress\."
    r"|java\.(?:io\.IOException|lang\.InternalError): (?:Compressed |Could not decompress|FAILED_TO_UNCOMPRESS|Corrupt)"
    # Parquet: footers, pages, and columns that are not as declared
    r"|java\.lang\.RuntimeException: .*(?:is not a Parquet file|corrupted file|footer is too large)"
    r"|java\.io\.EOFException: Reached the end of stream with"
    r"|java\.io\.IOException: (?:can not read class |Expected \d+ values in column chunk)"
    r"|java\.lang\.ClassNotFoundException: org\.apache\.hadoop\.io\.compress\."
    r"|org\.apache\.parquet\.|shaded\.parquet\.org\.apache\.thrift\."
    r"|org\.apache\.spark\.sql\.execution\.datasources\.SchemaColumnConvertNotSupportedException"
    # CSV
    r"|.*CSV header|com\.univocity\.parsers\."
    # a checksum beside a local file, which Hadoop keeps of those that it writes
    r"|org\.apache\.hadoop\.fs\.ChecksumException"
    # what a decoder stumbles over and no storage
    r"|java\.lang\.(?:(?:Array|String)?IndexOutOfBounds|NegativeArraySize|ArrayStore|Arithmetic|ClassCast|NumberFormat)Exception"
    r"|java\.nio\.(?:charset\.|BufferUnderflowException)"
    # a name that Spark can't have, such as a local one with a colon
    r"|java\.net\.URISyntaxException",
    re.IGNORECASE,
)


def is_damage(causes: Sequence[str]) -> bool:
    """Tell whether a file's content made its reading fail.

    `causes` are the first lines of the errors, the cause of all last.
    """
    return not is_away(causes) and _DAMAGE.match(causes[-1]) is not None


def is_away(causes: Sequence[str]) -> bool:
    """Tell whether one of the errors with these first lines is known to be of a storage."""
    return any(one.startswith(STORAGE_AWAY) and not one.startswith(_UNNAMEABLE) for one in causes)
