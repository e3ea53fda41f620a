"""The names of the lake's tables in the SQL catalog, for other readers."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping


def catalog_uri(dsn: Mapping[str, str]) -> str:
    """Return SQLAlchemy's URI of the catalog, with all that `dsn` says, the search path being `sluice`."""
    values = {**dsn, "options": f"{dsn.get('options', '')} -c search_path=sluice".strip()}
    return f"postgresql+psycopg2:///?{urllib.parse.urlencode(values, quote_via=urllib.parse.quote)}"
