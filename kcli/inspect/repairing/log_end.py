"""Decides where a repaired log ends: where it once ended, so that no offset is given out twice, or at its last batch.

    replicas of the partition, by the metadata log    the log ends                             because
    ------------------------------------------------  ---------------------------------------  -------------------------------
    one, or not known                                 where it once ended: an empty segment    the next record would get the
    several, and only this one is in sync               begins there                             offset of a lost one
    several, another one in the ISR or an eligible    at its last batch, or at the log start   the broker fetches the rest
      leader replica                                    offset if that is higher                 from the leader

A follower fetches from its log end offset on. The leader's response makes it truncate where the leader epochs diverge, but not
fill a hole: before an empty segment at the old end, the offsets would stay missing in this replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kcli.inspect.repairing.salvage import SegmentSalvage
from kcli.inspect.verification.evidence import Claim, Evidence, collect_claims, evident_end
from kcli.inspect.verification.facts import PartitionOptions, PartitionResult
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import Segment, read_partition

if TYPE_CHECKING:
    from kcli.inspect.description.metadata_view import OtherReplicas


class LogEnd(NamedTuple):
    """The batches that stay end at `batch_end`, the log once ended where `evidence` shows, and is to end at `end_offset`.

    `unproven` are the base offsets of segments after the last batch, which have no batch.
    """

    batch_end: int
    evidence: Evidence
    end_offset: int
    unproven: list[int]

    @property
    def is_fetched(self) -> bool:
        """True if the broker fetches what is missing at the end."""
        return self.end_offset < self.evidence.end_offset


def _without_indexes(segment: Segment) -> Segment:
    return segment._replace(offset_index=None, time_index=None, transaction_index=None)


def _moved_end(batch_end: int, salvages: Sequence[tuple[int, SegmentSalvage]]) -> int | None:
    """Return the offset after the displaced batches that continue the log, None if there are none.

    They may be in any segment, and may continue the last header of a damaged batch.
    """
    last = salvages[-1][1] if salvages else None
    if last is None:
        return None
    stated = end = max(batch_end, last.stated_end or 0)
    end = max(end, last.moved_end or 0)
    for first, last_offset in sorted(offsets for _, salvage in salvages for offsets in salvage.displaced):
        end = last_offset + 1 if first == end else end
    return end if end > stated else None


def _inner_end(end: int, salvages: Sequence[tuple[int, SegmentSalvage]], options: PartitionOptions) -> int | None:
    """Return the offset after what may be batches in the damaged end and continues the log at offset `end`, None without any.

    A repair removes them and names their offsets as lost. After a clean stop the other files show the end.
    """
    reached = end
    for one in (one for found in (salvages[-1][1].inner if salvages else ()) for one in found.batches):
        reached = one.last_offset + 1 if one.base_offset <= reached <= one.last_offset else reached
    return reached if reached > end and options.is_clean is not True else None


def find_log_end(
    disk: Disk,
    before: PartitionResult,
    options: PartitionOptions,
    salvages: Sequence[tuple[int, SegmentSalvage]],
    *,
    gone_names: frozenset[int],
    log_start_offset: int,
    replicas: OtherReplicas | None,
) -> LogEnd:
    """Decide where a log ends; `salvages` are its segments with their base offsets. Raises OSError.

    `before` is the verification before the repair. `gone_names` are base offsets in names that show nothing.
    """
    kept = [salvage.next_offset for _, salvage in salvages if salvage.kept]
    batch_end = max([salvages[0][0] if salvages else 0, *kept])
    unproven = [base for base, salvage in salvages if not salvage.kept and base > batch_end]
    partition = read_partition(disk, before.path)
    sizes = {segment.base_offset: disk.size(segment.log) for segment in partition.segments}
    empty = [base for base in unproven if sizes.get(base) == 0]
    partition = partition._replace(
        segments=[_without_indexes(one) if one.base_offset in gone_names else one for one in partition.segments],
        snapshots=[file for file in partition.snapshots if file.base_offset not in gone_names],
        others=[file for file in partition.others if file.base_offset not in gone_names],
    )
    claims = collect_claims(
        disk,
        partition,
        options,
        batch_end=batch_end,
        is_end_damaged=not salvages or salvages[-1][1].ends_damaged,
        stated_end=salvages[-1][1].stated_end if salvages else None,
        moved_end=_moved_end(batch_end, salvages),
        empty_names=empty,
        unproven_names=[base for base in unproven if base not in empty],
    )
    evidence = evident_end(claims, batch_end)
    inner_end = _inner_end(evidence.end_offset, salvages, options)
    if inner_end is not None:
        claims.append(Claim(inner_end, "the offset after what may be batches in the damaged end", True))
        evidence = evident_end(claims, batch_end)
    end_offset = evidence.end_offset
    # If nothing is damaged, the cleaner may have removed everything before an empty segment.
    is_damaged = end_offset not in empty or any(salvage.cuts for _, salvage in salvages)
    is_missing = is_damaged or any(first < end_offset <= end for first, end in before.missing)
    if replicas is not None and replicas.are_in_sync and is_missing:
        end_offset = max(batch_end, min(log_start_offset, end_offset))
    return LogEnd(batch_end, evidence, end_offset, unproven)
