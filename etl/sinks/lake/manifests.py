"""The manifests of a pipeline's deliveries, beside its table: one per attempt to commit, named by its number and its run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etl.sinks.lake.s3 import s3_client, stored

if TYPE_CHECKING:
    from etl.sinks.lake.lake import TableLocation

_NAME = re.compile(r"/deliveries/([0-9]+)-([0-9a-f]{8})\.json$")


@dataclass(frozen=True, kw_only=True)
class Named:
    """What the name of a manifest tells."""

    uri: str
    delivery_id: int
    run: str  # the first eight characters of its id


def manifests(table: TableLocation) -> list[Named]:
    """List a table's manifests.

    What a killed server left of one, under another name, is left out.
    """
    uris = [one.uri for one in stored(s3_client(table.lake.store), f"{table.location}/deliveries")]
    return [
        Named(uri=uri, delivery_id=int(name[1]), run=name[2]) for uri in uris if (name := _NAME.search(uri))
    ]
