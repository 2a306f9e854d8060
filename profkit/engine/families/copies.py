"""Blocking copies of pageable memory, by source line."""

from collections.abc import Iterator

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.python_calls import find_library_function, may_be_torchs, place_of_call
from profkit.engine.savings import CostlyWait, WaitThresholds, find_costly_waits
from profkit.engine.windows import waits_in_windows
from profkit.index.device.syncs import SyncKind, Syncs, is_pageable, sizes_of
from profkit.index.distinct import distinct
from profkit.model.change import ProgramChange
from profkit.model.events import Int32s, Int64s, Rows
from profkit.model.finding import Finding
from profkit.model.location import Location
from profkit.units import format_bytes


@dataclass(frozen=True)
class CopySite:
    """The blocking copies of one source line.

    Attributes:
        location: The line.
        caller: The function of a library that the line calls and that copies, or empty.
        owners: The operators that copy.
        copies: The copies. Shape ``(k,)``.
        sizes_bytes: Bytes of each copy, 0 where they are not known. Shape ``(k,)``.
        wait: The time that they block the host, and what it costs.
    """

    location: Location
    caller: str
    owners: Rows | Int32s
    copies: Int32s
    sizes_bytes: Int64s
    wait: CostlyWait

    @property
    def sizes(self) -> str:
        """Size of a copy, such as ``18.4 MiB``, or from the smallest to the largest."""
        smallest = format_bytes(int(self.sizes_bytes.min()))
        largest = format_bytes(int(self.sizes_bytes.max()))
        return largest if smallest == largest else f"{smallest} to {largest}"

    @property
    def place(self) -> str:
        """Place of the copies, with a leading space."""
        return place_of_call(self.caller, self.location)

    def finding(self, info: RuleInfo, *, message: str, fix: str) -> Finding:
        """Build the finding of a rule on these copies."""
        return self.wait.finding(
            info,
            message=f"{message} and {self.wait.text}",
            fix=fix,
            locations=(self.location,),
            rows=self.copies,
            n=len(self.owners),
            evidence={"bytes": int(self.sizes_bytes.sum())},
        )


def pageable_copies(ctx: Context, kind: SyncKind) -> Syncs:
    """Return the calls in the steps that block the host with a copy of pageable memory."""
    waits = waits_in_windows(ctx, kind)
    return waits.select(is_pageable(ctx.events, waits.copy))


def find_copy_sites(ctx: Context, waits: Syncs, thresholds: WaitThresholds) -> Iterator[CopySite]:
    """Yield the source lines whose copies block the host for longer than a threshold."""
    lines = list(ctx.by_line(distinct(waits.owner)))
    waits_of_lines = [waits.select(np.isin(waits.owner, owners)) for _, owners in lines]
    costs = find_costly_waits(
        ctx, [ProgramChange(calls=site_waits.rows) for site_waits in waits_of_lines], thresholds
    )

    for (location, owners), site_waits, wait in zip(lines, waits_of_lines, costs, strict=True):
        if wait is not None:
            copies = distinct(site_waits.copy)
            caller = find_library_function(ctx, owners)
            # The program calls a function of torch itself.
            caller = "" if may_be_torchs(caller) else caller
            yield CopySite(location, caller, owners, copies, sizes_of(ctx.events, copies), wait)
