"""Names of files that are easily taken for others on the way: to Java, a URI, a glob, the ledger and back."""

from __future__ import annotations

ODD = (
    *("c\u3000", "\u00a0a", "b\u2028b", "b\u0085b", "b\u200bb", "\ufeffb"),  # spaces, of Unicode
    *("caf\u00e9", "cafe\u0301", "\U0001f600"),  # two names, though they look like one
    *("b b", " b", "b ", "b\nb", "b\tb", "b\x01b"),
    *("b#b", "b?b", "b+b", "b%", "b%zz", "b%20b", "b;b", "b=b", "b&b", "b|b", "~b", "-b", "<b>", "b^`b"),
    *("b[1]", "b{1}", "b*", "b\\b", "b,b", 'b"b', "b'b"),
)
