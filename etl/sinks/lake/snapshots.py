"""Drafts the snapshots of an Iceberg table's next metadata, under a name that says whose they are."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles

_NAME = re.compile(r"/([0-9a-f-]{36})-m\d+\.avro$")


@dataclass(frozen=True, kw_only=True)
class DraftedDelivery:
    """The delivery that a draft is of: its name and its snapshots say so."""

    delivery_id: int
    stream_id: str
    batch_id: int
    run_id: str
    manifest: str  # URI of the delivery's manifest

    @property
    def summary(self) -> dict[str, str]:
        """Return what the summary of each of the delivery's snapshots has."""
        return {
            "sluice.delivery": str(self.delivery_id),
            "sluice.stream": self.stream_id,
            "sluice.batch": str(self.batch_id),
            "sluice.manifest": self.manifest,
        }


def draft_name(delivery_id: int, run_id: str) -> uuid.UUID:
    """Make a name for one draft's metadata objects that tells whose they are.

    It is four bytes of the run, six random ones, then the delivery's number. The sweeper may remove an object
    only when it knows the attempt that wrote it; the number alone may be another database's as well.
    """
    run = uuid.UUID(run_id).bytes[:4]
    return uuid.UUID(bytes=run + secrets.token_bytes(6) + delivery_id.to_bytes(6, "big"))


def drafted_by(name: uuid.UUID) -> int:
    """Return the delivery id within a name that `draft_name` made."""
    return int.from_bytes(name.bytes[10:], "big")


def drafting_run(name: uuid.UUID) -> str:
    """Return the first 8 characters of the run's id within a name that `draft_name` made."""
    return name.hex[:8]


def merge_append(
    change: Transaction, io: FileIO, name: uuid.UUID, properties: Mapping[str, str]
) -> _MergeAppendFiles:
    """Return pyiceberg's merge append with manifests under `name`: its own short form takes no name."""
    return _MergeAppendFiles(
        operation=Operation.APPEND,
        transaction=change,
        io=io,
        commit_uuid=name,
        snapshot_properties=dict(properties),
    )


class Overwrite(_OverwriteFiles):
    """An overwrite that costs what leaves, and not what the table has.

    pyiceberg's own reads every manifest twice, once what leaves was found by reading each; and it keeps the
    manifests of what had left before, one more with every overwrite.
    """

    def __init__(
        self, change: Transaction, io: FileIO, name: uuid.UUID, properties: Mapping[str, str]
    ) -> None:
        parent = change.table_metadata.current_snapshot()
        super().__init__(
            operation=Operation.OVERWRITE if parent else Operation.APPEND,
            transaction=change,
            io=io,
            commit_uuid=name,
            snapshot_properties=dict(properties),
        )
        manifests = parent.manifests(io) if parent else []
        self._base = [one for one in manifests if one.has_added_files() or one.has_existing_files()]
        # All entries of each manifest that loses some.
        self._touched: dict[ManifestFile, list[ManifestEntry]] = {}

    def take_out(self, uris: frozenset[str] | None, likely: Collection[int]) -> int:
        """Take these objects (None: all) out of the table; return how many of them it had.

        They were probably added by one of the deliveries `likely`, or are in a manifest merged since.
        """

        def order(manifest: ManifestFile) -> tuple[bool, int]:
            return not _is_by(manifest, likely), -(manifest.existing_files_count or 0)

        for manifest in sorted(self._base, key=order):
            if uris is not None and len(self._deleted_data_files) == len(uris):
                break
            entries = manifest.fetch_manifest_entry(self._io)
            removed = [one for one in entries if uris is None or one.data_file.file_path in uris]
            if removed:
                self._touched[manifest] = entries
            for entry in removed:
                self.delete_data_file(entry.data_file)
        return len(self._deleted_data_files)

    def _build_delete_files_partition_predicate(self) -> None:
        """Do nothing: no object here is deleted by its partition."""

    def _deleted_entries(self) -> list[ManifestEntry]:
        return [
            _entry(one, ManifestEntryStatus.DELETED, self.snapshot_id)
            for entries in self._touched.values()
            for one in entries
            if one.data_file in self._deleted_data_files
        ]

    def _existing_manifests(self) -> list[ManifestFile]:
        return [rest for manifest in self._base for rest in self._left_of(manifest)]

    def _left_of(self, manifest: ManifestFile) -> list[ManifestFile]:
        """Return the manifest without the entries that leave: as it is, rewritten, or none."""
        if manifest not in self._touched:
            return [manifest]
        staying = [one for one in self._touched[manifest] if one.data_file not in self._deleted_data_files]
        if not staying:
            return []
        with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
            for one in staying:
                writer.add_entry(_entry(one, ManifestEntryStatus.EXISTING, one.snapshot_id))
        return [writer.to_manifest_file()]


def _entry(one: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=one.sequence_number,
        file_sequence_number=one.file_sequence_number,
        data_file=one.data_file,
    )


def _is_by(manifest: ManifestFile, deliveries: Collection[int]) -> bool:
    """Tell whether one of these deliveries wrote the manifest, as its name says."""
    name = _NAME.search(manifest.manifest_path)
    return name is not None and drafted_by(uuid.UUID(name[1])) in deliveries


Update = Overwrite | _MergeAppendFiles
