"""Draws JSON records that parsers of JSON disagree about."""

from __future__ import annotations

import random

import pyarrow as pa

SCHEMA = pa.schema(
    {
        "s": pa.string(), "i": pa.int32(), "l": pa.int64(), "sm": pa.int16(), "ti": pa.int8(), "d": pa.float64(),
        "f": pa.float32(), "b": pa.bool_(), "t": pa.timestamp("us", tz="UTC"), "n": pa.timestamp("us"), "dd": pa.date32(),
        "dec": pa.decimal128(10, 2), "wide": pa.decimal128(38, 18),
        "st": pa.struct([("x", pa.int32()), ("y", pa.string()), ("t", pa.timestamp("us", tz="UTC"))]),
        "a": pa.list_(pa.int32()), "ad": pa.list_(pa.date32()), "af": pa.list_(pa.float32()),
    }
)  # fmt: skip
GOOD = {
    "s": '"abc"', "i": "1", "l": "2", "sm": "3", "ti": "4", "d": "1.5", "f": "0.5", "b": "true",
    "t": '"2026-01-02T03:04:05Z"', "n": '"2026-01-02T03:04:05"', "dd": '"2026-01-02"', "dec": "1.25", "wide": '"0.1"',
    "st": '{"x":1,"y":"z","t":"2026-01-02T03:04:05Z"}', "a": "[1,2]", "ad": '["2026-01-02"]', "af": "[0.1]",
}  # fmt: skip
NUMBERS = [
    "0", "-0", "1", "-1", "127", "128", "-129", "32767", "32768", "2147483647", "2147483648", "-2147483649", "9" * 19,
    "9223372036854775807", "9223372036854775808", "1.0", "-0.0", "1e2", "1E+2", "1e-2", "1e400", "-1e400", "1e-400", "1e38",
    "3.4028235e38", "3.4028236e38", "1e39", "1.17549435e-38", "1e-46", "0.1", "0.30000000000000004", "16777217",
    "1.00000005960464477540", "12345678.12", "12345678.125", "99999999.99", "99999999.995", "100000000", "1.50000",
    "9" * 400,
    "0." + "1" * 400, "0." + "0" * 30 + "1", "99999999999999999999", "1e100000000", "00", "01", "-", "+1", ".5", "5.",
    "1.e1",
    "1e", "0x10", "1_000", "NaN", "-NaN", "Infinity", "-Infinity", "inf", "nan",
]  # fmt: skip
TEXTS = [
    '""', '"abc"', '"1"', '"1.5"', '"12,50"', '"+1"', '".5"', '"5."', '"1e3"', '"1e-400"', '"000000000001"', '"1_0"', '"٣"',
    '"NaN"', '"Infinity"', '"-Infinity"', '"+Infinity"', '"true"', '"null"', '"\\u00e9"', '"é"', '"\\ud83d\\ude00"', '"😀"',
    '"\\ud800"', '"\\udc00"', '"\\ude00\\ud83d"', '"\\ud83d\\ud83d\\ude00"', '"\\u0000"', '"a\\nb"', '"a\\/b"', '"\\x41"',
    '"tab\\t"', '"a\tb"', '"a\x00b"', '"a\x7fb"', '" lead"', '"trail "', f'"{"x" * 300}"', "'single'", '"\\u12"',
    '"\\u00E9"',
    '"\\uD83D\\uDE00"', '"{"', '"}"', '"[[["', '"\\""', '"\\\\"', '"\\', '"\ufeff"', '"\u2028"', '"\ufffd"', '"\uffff"',
]  # fmt: skip
_DAYS = ["2026-01-02", "2026-1-2", "2026-02-30", "2024-02-29", "0000-01-01", "0001-01-01", "9999-12-31", "10000-01-01",
         "-001-01-01", "1582-10-10", "1677-01-01", "2263-01-01", "20260102", "2026-W01-1", "2026-001"]  # fmt: skip
_CLOCKS = ["", "T03:04:05", " 03:04:05", "T03:04", "T03", "T24:00:00", "T23:59:60", "t03:04:05", "  03:04:05", "T3:4:5",
           "T030405", "T03:04:05.", "T03:04:05.1", "T03:04:05.123456", "T03:04:05.1234567", "T03:04:05.123456789",
           "T03:04:05.1234567890", "T03:04:05,5", "T03.5", "T00:00:00", "T23:59:59.999999", "T"]  # fmt: skip
_ZONES = ["", "Z", "z", "+01:00", "+0100", "+01", "-00:00", "+23:59", "+24:00", "+01:60", "+1:00", "+18:30", " Z",
    "Z ", " UTC",
          "UTC", "GMT", " BST", "Europe/Paris", "[Europe/Paris]", "+01:00:30"]  # fmt: skip
OTHERS = [
    "null", "true", "false", "True", "nul", "[]", "[1,2]", "[1,null]", "[1,2147483648]", '["1"]', "[1.0]", "[[1]]",
    "[1,]", "{}",
    '{"x":1}', '{"x":1,"y":"z"}', '{"x":"1"}', '{"x":1,"x":2}', '{"y":5,"zz":1}', '{"x":1.0}', '{"zz":1,"zz":2}', "[NaN]",
    "[1e39]", '["0000-01-01"]', '["2026-01-02","nope"]', '{"t":"2026-01-02"}', '{"t":"nope"}', '{"t":"0000-01-01"}',
    "[" * 20 + "]" * 20, "[" * 600 + "]" * 600, '{"a":' * 300 + "1" + "}" * 300, "", "/*c*/1", "1 //c",
]  # fmt: skip
BYTES = [
    b'{"s":"\xff"}', b'{"s":"\xc3\x28"}', b'{"s":"\xed\xa0\x80"}', b'{"s":"\xf4\x90\x80\x80"}', b'{"u":"\xff"}', b"", b" ",
    b'\xef\xbb\xbf{"i":1}', b'{"i":1}\r', b'{"i":1}\x00', b'{\x00"\x00i\x00', b"{", b"}", b"{}", b"{}{}", b"[]", b"null",
    b'{"i":1\n}', b'{"i":1}\n{"i":2}', b'{"s":"a\nb"}', b'{\n}', b'{"i"\n:\n1}', b'{"i":1}}', b'{"i":1,}', b'{,"i":1}',
    b"{i:1}",
    b"{'i':1}", b'{"\\u0069":1}', b'{"i":1,"\\u0069":2}', b'{"i":1,"i":1}', b'{"I":1}', b'{"i ":1}', b'{"":1}',
    b'{"\\ud800":1}', b'{"s":"}', b'{"s":"{"}', b'{"s":"\\"}', b'{"i":1;"l":2}', b'{"i" 1}', b'{"i":1 "l":2}', b'{"i":1}[]',
]  # fmt: skip


def hostile_records(*, seed: int, count: int) -> list[bytes]:
    """Draw so many records, no two alike: one member of each value first, then whole records with faults."""
    drawn = random.Random(seed)
    moments = [f'"{day}{clock}{zone}"' for day in _DAYS for clock in _CLOCKS for zone in _ZONES]
    pool = [*NUMBERS, *TEXTS, *OTHERS, *drawn.sample(moments, 150)]
    names = [*SCHEMA.names, "unknown", "S"]
    alone = [f'{{"{name}":{value}}}' for name in names for value in pool]
    records = dict.fromkeys(
        [*BYTES, *(_encoded(one) for one in drawn.sample(alone, min(len(alone), count // 2)))]
    )
    while len(records) < count:
        records[_encoded(_record(drawn, [*pool, drawn.choice(moments)], names))] = None
    return list(records)[:count]


def _record(drawn: random.Random, pool: list[str], names: list[str]) -> str:
    members = drawn.sample(list(GOOD.items()), drawn.randint(1, len(GOOD)))
    if drawn.random() < 0.7:
        at = drawn.randrange(len(members))
        members[at] = members[at][0], drawn.choice(pool)
    if drawn.random() < 0.15:
        members.append((drawn.choice(names), drawn.choice(pool)))
    blank = drawn.choice(["", "", " ", "\t", "  "])
    text = "{" + ",".join(f'{blank}"{name}"{blank}:{blank}{value}' for name, value in members) + blank + "}"
    return drawn.choices([text, _broken(drawn, text)], [0.9, 0.1])[0]


def _broken(drawn: random.Random, text: str) -> str:
    at = drawn.randrange(len(text))
    return drawn.choice(
        [text[:at], text[at:], text + text, f"{text} ", f" {text}", f"{text},", f"[{text}]", text[:at] + "\x01" + text[at:],
         text[:at] + text[at + 1 :], text[:at] + drawn.choice('{}[]",:\\\n1') + text[at:]]
    )  # fmt: skip


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
