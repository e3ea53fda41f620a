"""A part of an object on S3 is read in as few requests as docs/reading.md says."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from etl.common.paths import s3_client
from etl.services import Services
from etl.sources.raw.lines import BEYOND, REQUEST, Lines
from etl.sources.raw.parts import Part


class CountingProxy(ThreadingHTTPServer):
    """Hands requests on to an S3 server, and counts them by method."""

    def __init__(self, server: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server = urlsplit(server).netloc
        self.methods: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: CountingProxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.methods[self.command] += 1
        asked = HTTPConnection(self.server.server, timeout=60)
        asked.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            asked.putheader(name, value)
        asked.endheaders()
        answer = asked.getresponse()
        body = answer.read()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        asked.close()

    do_HEAD = do_GET  # noqa: N815 - as http.server calls it

    def log_message(self, *_: object) -> None:
        """Write nothing: a test's output is its own."""


@pytest.fixture
def proxy(services: Services) -> Iterator[CountingProxy]:
    assert services.s3_endpoint is not None
    with CountingProxy(services.s3_endpoint) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join()


def test_a_part_of_an_object_is_read_in_requests_of_8_mb(
    proxy: CountingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"lines-{uuid.uuid4().hex[:12]}"
    client = s3_client()
    client.create_bucket(Bucket=bucket)
    expected = [b"%d %s" % (number, b"x" * 1000) for number in range(20_000)]
    content = b"\n".join(expected)
    client.put_object(Bucket=bucket, Key="a b.jsonl", Body=content)
    uri, middle = f"s3a://{bucket}/a%20b.jsonl", len(content) // 2
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)

    def read(part: Part) -> tuple[list[bytes], Counter[str]]:
        before = proxy.methods.copy()
        return [line for lines in Lines().of(part) for line in lines.to_pylist()], proxy.methods - before

    assert 2 * REQUEST < len(content) < 3 * REQUEST
    assert read(Part(uri, 0, len(content))) == (expected, Counter(HEAD=1, GET=3))
    first, asked_first = read(Part(uri, 0, middle))
    second, asked_second = read(Part(uri, middle, len(content)))
    assert first + second == expected and len(first) == pytest.approx(len(second), abs=500)
    assert REQUEST < middle < 2 * REQUEST and BEYOND > 2 * 1000
    assert asked_first == Counter(HEAD=1, GET=2 + 1), "the last line goes on beyond the part"
    assert asked_second == Counter(HEAD=1, GET=2)
