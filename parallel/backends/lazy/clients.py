"""Every node a client of its own: what each sends and receives, without a process each.

The arithmetic is that of one process, since the weighted sum of the clients' gradients is that of
the sampled training nodes' mean loss (FedSGD).  A server gathers the gradients and hands out the
weights; rows go from client to client.  As baseline, what the same rounds cost if each participant
has its whole computation tree worked out by messages, as a GNN on clients does without sharing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ....storage.counter import uniform
from ....storage.snapshot import Snapshot
from ....storage.sparse import Float64
from ....stream import Bool, Int64
from ..ownership import Ownership
from .engine import LazyTrainer
from .part import Masks, Part
from .settings import LazySettings
from .stages import LOCAL, count_parameters

Medium = Literal["unicast", "broadcast"]


@dataclass(frozen=True, eq=False)
class Clients:
    """Bytes of each of V clients over a run, and of their server."""

    rows_sent: list[Int64]  # for each stage (V,) to neighbours, before it
    rows_received: list[Int64]
    weights_received: Int64  # (V,) from the server
    gradients_sent: Int64  # (V,) to the server
    participations: Int64  # (V,) rounds that a client took part in, over all stages
    trainer: LazyTrainer  # what was learned

    @property
    def total(self) -> Int64:
        """(V,) all that a client sent and received."""
        rows = sum(self.rows_sent) + sum(self.rows_received)
        return rows + self.weights_received + self.gradients_sent

    @property
    def largest(self) -> tuple[int, int]:
        """The client that sent and received most, and how many bytes that was."""
        total = self.total
        return int(total.argmax()), int(total.max(initial=0))

    @property
    def server(self) -> int:
        """What the server sent and received."""
        return int(self.weights_received.sum() + self.gradients_sent.sum())


def simulate_clients(
    snapshot: Snapshot,
    masks: Masks,
    settings: LazySettings,
    *,
    participants: int = 512,
    medium: Medium = "unicast",
) -> Clients:
    """Lazy training with a node a client, and what it costs each of them.

    In a round at most `participants` training nodes get the stage's weights and send a gradient;
    to be chosen by, a client gets the weights at each evaluation; after the rounds all get them
    once.  In a `broadcast` medium all neighbours hear one message.
    """
    if participants < 1:
        raise ValueError(f"`participants` must be at least 1: got {participants}")
    num_nodes = snapshot.num_nodes
    train, val, _ = (np.asarray(mask, bool) for mask in masks)
    labelled = np.flatnonzero(train)
    taken = np.zeros((len(settings.kinds), num_nodes), np.int64)

    def sample(stage: int, turn: int) -> Bool:
        drawn = uniform(settings.seed, f"participants {stage} {turn}", labelled, 1)[:, 0]
        chosen = labelled[np.argsort(drawn, kind="stable")[:participants]]
        taken[stage, chosen] += 1
        mask = np.zeros(num_nodes, bool)
        mask[chosen] = True
        return mask

    part = Part.of(snapshot, masks, Ownership.round_robin(num_nodes, 1), 0)
    trainer = LazyTrainer(part, settings, sample=sample)
    trainer.train()
    item = 8 if settings.double else 4
    in_degree, out_degree = neighbours(snapshot)
    weights, gradients = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int64)
    sent, received = [], []
    width = part.features.shape[1]
    for stage, module in enumerate(trainer.stages):
        crosses = module.kind not in LOCAL
        copies = out_degree if medium == "unicast" else np.minimum(out_degree, 1)
        sent.append(copies * (width * item * crosses))
        received.append(in_degree * (width * item * crosses))
        size = count_parameters(module) * item
        weights += size * (taken[stage] + 1 + val * trainer.evaluations[stage])
        gradients += size * taken[stage]
        width = part.num_classes if settings.payload == "logits" else module.width
    return Clients(sent, received, weights, gradients, taken.sum(0), trainer)


def neighbours(snapshot: Snapshot) -> tuple[Int64, Int64]:
    """From how many others each node gets rows, and to how many it gives its own: (V,) each."""
    matrix = snapshot.adjacency
    others = matrix.row_of != matrix.indices
    ends = (matrix.row_of[others], matrix.indices[others])
    into, out = (np.bincount(end, minlength=snapshot.num_nodes) for end in ends)
    return into, out


def tree_bytes(
    snapshot: Snapshot, widths: list[int], parameters: list[int], itemsize: int = 4
) -> Float64:
    """(V,) what one round costs if a node has its computation tree worked out by messages.

    `widths` are those of the features and of each layer's output, `parameters` of each layer.
    Nothing is shared between branches.  A neighbour j hops off sends up its embedding after K - j
    layers; for that it is sent the weights of these layers, and, where there are any, it gets its
    embedding's gradient and sends up that of the weights.  How the counts of the RETEXO prototype
    break down is not published; this is a reconstruction of them.
    """
    if len(widths) != len(parameters) + 1:
        raise ValueError(
            f"`widths` must be one more than `parameters`: got {len(widths)} and {len(parameters)}"
        )
    matrix, layers = snapshot.adjacency, len(parameters)
    others = matrix.row_of != matrix.indices
    row, column = matrix.row_of[others], matrix.indices[others]
    walks: Float64 = np.ones(snapshot.num_nodes)
    total = np.full(snapshot.num_nodes, 2.0 * sum(parameters))  # with the server
    for hop in range(1, layers + 1):
        walks = np.bincount(row, walks[column], snapshot.num_nodes).astype(np.float64)
        below = layers - hop  # layers that such a neighbour applies
        numbers = widths[below] * (1 + (below > 0)) + 2 * sum(parameters[:below])
        total += walks * numbers
    found: Float64 = total * itemsize
    return found
