"""Only what a decoder is known to say of a file's content is damage; all else is a storage that is away."""

from __future__ import annotations

import pytest

from etl.spark.damage import is_damage

FAILED = "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a."
DAMAGED = """
java.io.EOFException: Unexpected end of input stream
java.io.EOFException: Unexpected end of ZLIB input stream
java.io.IOException: not a gzip file
java.io.IOException: invalid distance too far back
java.io.IOException: gzip stream CRC failure
java.io.IOException: incorrect data check
java.util.zip.ZipException: Not in GZIP format
java.io.IOException: unexpected end of stream
java.lang.ArrayIndexOutOfBoundsException: Index 900000 out of bounds for length 900000
com.github.luben.zstd.ZstdIOException: Truncated source
com.github.luben.zstd.ZstdIOException: Unknown frame descriptor
java.lang.IllegalArgumentException: Number of column in CSV header is not equal to number of fields in the schema:
java.lang.IllegalArgumentException: CSV header does not conform to the schema.
java.lang.RuntimeException: file:/in/a.parquet is not a Parquet file. Expected magic number at tail, but found [0, 0, 39, 65]
java.lang.RuntimeException: footer is too large: 3806531118to be read
java.io.IOException: Expected 3616 values in column chunk at file:/in/a.parquet offset 80032 but got 20000 values instead
java.io.IOException: FAILED_TO_UNCOMPRESS(5)
io.airlift.compress.MalformedInputException: offset outside destination buffer: offset=1028
org.apache.parquet.io.InvalidRecordException: id not found in message schema { /   optional int32 if; /   optional int64 n; }
shaded.parquet.org.apache.thrift.transport.TTransportException: Socket is closed by peer.
java.net.URISyntaxException: Relative path in absolute URI: t10:00:00.jsonl
""".strip().splitlines()
AWAY = """
java.io.IOException: Input/output error
java.io.IOException: Stale file handle
java.io.IOException: Transport endpoint is not connected
java.io.IOException: Invalid argument
java.io.IOException: Resource temporarily unavailable
java.io.InterruptedIOException: getFileStatus on s3a://landing/a.jsonl.gz
org.apache.hadoop.net.ConnectTimeoutException: 20000 millis timeout while waiting for channel to be ready for connect
javax.net.ssl.SSLException: Connection reset
java.net.SocketTimeoutException: Read timed out
java.nio.file.AccessDeniedException: s3a://landing/a.jsonl.gz
org.apache.hadoop.hdfs.BlockMissingException: Could not obtain block
org.apache.hadoop.hdfs.CannotObtainBlockLengthException: Cannot obtain block length
java.io.EOFException: Read was expected to fetch 8192 bytes
com.example.CloudFileSystemException: whatever it says
""".strip().splitlines()


@pytest.mark.parametrize("cause", DAMAGED)
def test_what_decoders_say_is_damage(cause: str) -> None:
    assert is_damage([FAILED, cause])


@pytest.mark.parametrize("cause", AWAY)
def test_what_no_decoder_says_is_a_storage_that_is_away(cause: str) -> None:
    assert not is_damage([FAILED, cause])
    wrapped = "org.apache.parquet.io.ParquetDecodingException: Can not read value at 1 in block 0 in file file:/in/a"
    assert not is_damage([FAILED, wrapped, cause])


def test_a_connection_that_ends_too_early_is_no_file_that_does() -> None:
    ended = "java.io.EOFException: Unexpected end of input stream"
    assert not is_damage([FAILED, "javax.net.ssl.SSLException: SSL peer shut down incorrectly", ended])
    assert not is_damage([FAILED, "org.apache.hadoop.fs.s3a.AWSClientIOException: re-open s3a://b/a", ended])
