"""A whole segment at a time: the scan of a model that has one, in place of its updates.

Invariant: the scan sees the rows that updates would see, and fills the rows that they would fill.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..models import Chain, ChainMembers, can_scan
from ..models.threads import count_threads
from ..stream import Int64
from .costs import FUSED, threaded
from .executor import Executor, Outcome
from .heap import keep_freed_memory
from .levels import LevelExecutor
from .pieces import Rows
from .replay import Replay
from .schedule import Schedule
from .scheduled import Plan, ScheduledExecutor
from .segment import Segment
from .sharing import exchange, share_chain


class FusedExecutor(ScheduledExecutor[Chain]):
    """Runs a segment by the model's scan, then scores it in one batch.

    Raises:
        ValueError: if the model, as it is, has no scan, or states are not on a CPU.
    """

    costs = FUSED

    def __init__(self, replay: Replay) -> None:
        super().__init__(replay)
        keep_freed_memory()
        self.widths_of_rows = dict(self.model.tables)  # a scan keeps what it derives to itself
        if not can_scan(self.model):
            raise ValueError(
                f"{type(self.model).__name__} has no fused scan with these options and layers: "
                "use the executor 'levels', or 'auto'"
            )
        self.encoder = replay.model.encode_chain
        if replay.device.type != "cpu":
            raise ValueError(
                f"a fused scan runs on a CPU, not on {str(replay.device)!r}: use the executor "
                "'levels', or 'auto'"
            )

    def arrange(self, segment: Segment, plan: Schedule, rows: Rows, mine: Int64 | None) -> Chain:
        neighbors, members = segment.neighbors, segment.members
        linked = bool(self.model.link_tables)
        nothing = np.empty(0, bool)
        chain = Chain(
            num_rows=plan.num_rows,
            base={},
            kind=segment.events.kind.numpy(),
            encoded={},
            ends=rows.ends,
            writes=plan.write_row,
            indptr=neighbors.indptr,
            neighbors=rows.neighbors,
            before=neighbors.before,
            partner=neighbors.partner if linked else nothing,
            link=neighbors.link + 1,
            is_loop=segment.ends[:, 0] == segment.ends[:, 1],
            gap=neighbors.gap,
            is_src=neighbors.is_src,
            links={},
            members=None
            if members is None
            else ChainMembers(members.indptr, rows.members, members.ends, members.neighbors),
            sampled=rows.sampled,
            sampled_mask=segment.sampled_valid,
            noise=segment.noise,
        )
        chain = chain if mine is None else chain.take(mine)
        parts = share_chain(
            chain, len(plan.base), count_threads(), threaded(sum(self.widths_of_rows.values()))
        )
        return replace(chain, parts=parts) if parts else chain

    def run(self, prepared: Plan[Chain], *, embed: bool = False) -> Outcome:
        segment = prepared.segment
        self.stages.enter("hoist")
        tables = self.tables(prepared, prepared.schedule.num_rows)
        base = {name: table[: len(prepared.base)] for name, table in tables.items()}
        encoded = self.encoded(prepared)
        self.stages.enter("scan")
        self.touch_links(segment.neighbors.link)
        links = {name: self.state[name].numpy()[:, 0] for name in self.model.link_tables}
        chain = replace(prepared.work, base=base, tables=tables, encoded=encoded, links=links)
        scanned = self.model.scan(chain)
        states, penalty = dict(scanned.states), scanned.penalty
        if prepared.shares is not None:
            states = exchange(self.replay.comm, prepared.shares, states)
            self.exchange_links(prepared)
            if penalty is not None:
                penalty = self.exchange_penalty(prepared, penalty)
        states = {n: self.stages.on_backward("backward scan", s) for n, s in states.items()}
        return self.finish(prepared, states, penalty, embed)


def automatic(replay: Replay) -> Executor[Any]:
    """The fastest exact executor that serves the model: its fused scan, or else its levels."""
    if can_scan(replay.model) and replay.device.type == "cpu":
        return FusedExecutor(replay)
    return LevelExecutor(replay)
