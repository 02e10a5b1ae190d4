"""The states that training left, brought to a replay of the whole log.

The training log leaves out the events of new nodes, so its node, link and event numbers are its
own.  Invariant: a node that is not in the training log has the state with which it starts, and a
link that is not there what `first_links` of the model gives.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ...parallel import Replay
from ...parallel.replay import PENDING
from ...stream import Int64


def carry_states(
    states: Mapping[str, Tensor],
    learning: Replay,
    scoring: Replay,
    nodes: Int64,
    trained: Int64,
    start: int,
) -> None:
    """Give `scoring`, whose states are those of the log's start, the `states` of `learning`.

    `states` are those after all of `learning`'s log, as `NodeState.to_arrays` gives them; node i of
    that log is `nodes[i]` of the whole log, and event i stands at `trained[i]`, before `start`.
    What a stale run has put off is done later, with the weights of then and the whole log's graph.
    """
    learning.apply(len(learning.log))
    scoring.apply(start)
    links = set(scoring.model.link_tables)
    for name, values in states.items():
        if name == PENDING:
            scoring.state.write(name, nodes, _pending(values, trained))
        elif name not in links:
            scoring.state.write(name, nodes, values)
    if not links:
        return
    key, row, degree = _links(scoring, np.arange(scoring.log.num_nodes), start)
    order = np.argsort(key)
    own_key, own_row, _ = _links(learning, nodes, len(learning.log))
    place = row[order[np.searchsorted(key, own_key, sorter=order)]]
    first_links = scoring.model.first_links(torch.from_numpy(degree).to(scoring.dtype))
    for name, first in first_links.items():
        scoring.state.grow(name, 1 + 2 * scoring.graph.num_links)
        scoring.state.write(name, row, first[:, None])
        scoring.state.write(name, place, states[name][own_row])


def _pending(values: Tensor, trained: Int64) -> Tensor:
    """The table `PENDING` (n, 2), its events and batches renumbered from the training log's."""
    last, batch = values.numpy().T
    waits = last > 0
    pending = np.zeros(values.shape, np.int64)
    pending[waits, 0] = 1 + trained[last[waits] - 1]
    pending[waits, 1] = trained[batch[waits]]
    return torch.from_numpy(pending)


def _links(replay: Replay, names: Int64, stop: int) -> tuple[Int64, Int64, Int64]:
    """Of all directed links before `stop` (each (m,)): a key by the `names` of its ends, the row in
    the tables, and how many links its node has."""
    nodes = np.arange(len(names))
    links = replay.graph.links(nodes, stop)
    sizes = np.diff(links.indptr)
    key = np.repeat(names[nodes], sizes) * np.int64(2**31) + names[links.node]
    return key, links.link + 1, np.repeat(sizes, sizes)
