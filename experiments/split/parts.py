"""The chronological split: which events are trained on, which are validated on and tested on.

The definitions of DGB (Poursafaei et al. 2022, "Towards Better Evaluation for Dynamic Link
Prediction") and DyGLib (Yu et al. 2023, "Towards Better Dynamic Graph Learning"), which stand in
docs/protocols.md.  Invariant: whether an event is trained on depends on its time, its ends and
which nodes appear after training; never on what happens to them there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from ...storage import uniform
from ...stream import Bool, EventBatch, EventLog, Int64

NEW_NODES = 0.1
"""Which part of all nodes is kept from training, to be met as new ones."""


@dataclass(frozen=True, slots=True)
class Split:
    """The parts `[0, val_start)`, `[val_start, test_start)` and `[test_start, n)` of a log."""

    val_start: int
    test_start: int
    val_time: float  # ticks; the training part ends with the events of this time
    test_time: float  # ticks; the validation part likewise
    new_nodes: Int64  # (m,) nodes none of whose events is trained on
    trained: Bool  # (n,)
    inductive: Bool  # (n,) an event after training with an end that no trained event has

    @property
    def spans(self) -> dict[str, tuple[int, int]]:
        """The parts that are evaluated, as half-open spans."""
        return {
            "val": (self.val_start, self.test_start),
            "test": (self.test_start, len(self.trained)),
        }


def split_log(
    log: EventLog, val_ratio: float = 0.15, test_ratio: float = 0.15, *, seed: int = 2020
) -> Split:
    """The split of `log` at the quantiles of its times; events of one time stay together.

    A tenth of all nodes, drawn by `seed` from those that appear after training, are new ones.

    Raises:
        ValueError: if a part is left without events.

    >>> log = EventLog.from_arrays(list("abababab"), list("bababaca"), range(8))
    >>> split = split_log(log, 0.25, 0.25)
    >>> split.spans, split.inductive.tolist()[4:]
    ({'val': (4, 6), 'test': (6, 8)}, [False, False, True, False])
    """
    events, when = log.events, log.events.time.astype(np.float64)
    if not len(log):
        raise ValueError("the log holds no event: there is nothing to split")
    cuts = [1 - val_ratio - test_ratio, 1 - test_ratio]
    val_time, test_time = np.quantile(when, cuts).tolist()
    val_start, test_start = (int((when <= cut).sum()) for cut in (val_time, test_time))
    for part, size in (("validate", test_start - val_start), ("test", len(log) - test_start)):
        if not size:
            raise ValueError(
                f"the split leaves no event to {part} on: the log has {len(log)} events at "
                f"{len(np.unique(when))} times, and those of one time stay together; give a longer "
                "log or other `val_ratio` and `test_ratio`, or take the prequential protocol"
            )
    ends = np.stack([events.src, events.dst], axis=1)
    later = np.unique(ends[val_start:])
    count = min(int(NEW_NODES * len(np.unique(ends))), len(later))
    order = np.argsort(uniform(seed, "new nodes", later, 1)[:, 0], kind="stable")
    new_nodes = np.sort(later[order[:count]])
    trained: Bool = ~_touches(events, new_nodes)
    trained[val_start:] = False
    if not trained.any():
        raise ValueError(
            f"the split leaves no event to train on: each of the first {val_start} has one of "
            f"{count} nodes that are kept as new ones; give a longer log, or another `split_seed`"
        )
    inductive: Bool = _touches(events, np.setdiff1d(ends, ends[trained]))
    inductive[:val_start] = False
    return Split(val_start, test_start, val_time, test_time, new_nodes, trained, inductive)


def training_log(log: EventLog, split: Split) -> tuple[EventLog, Int64]:
    """The trained events as a log of their own, and the nodes (m,) of `log` that its ids stand for.

    Links that stand before the first event go with the new nodes, too.
    """
    events, initial = log.events[split.trained], log.initial
    if initial is not None:
        initial = initial[~_touches(initial, split.new_nodes)]
    batches = [events] if initial is None else [initial, events]
    ends = np.concatenate([np.stack([b.src, b.dst], axis=1).ravel() for b in batches])
    nodes, first = np.unique(ends, return_index=True)
    order = np.argsort(first)
    nodes = nodes[order]  # in order of first appearance, as the ids of every log
    dense = np.empty(log.num_nodes, np.int64)
    dense[nodes] = np.arange(len(nodes))
    events, *rest = (_renamed(batch, dense) for batch in reversed(batches))
    kept = replace(
        log, events=events, initial=rest[0] if rest else None, nodes=log.nodes.take(nodes)
    )
    return kept, nodes


def _touches(batch: EventBatch, nodes: Int64) -> Bool:
    """Which events have an end among `nodes`."""
    touches: Bool = np.isin(batch.src, nodes) | np.isin(batch.dst, nodes)
    return touches


def _renamed(batch: EventBatch, dense: Int64) -> EventBatch:
    columns = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return EventBatch(**columns | {"src": dense[batch.src], "dst": dense[batch.dst]})
