"""JODIE: two recurrent cells that renew each other's states, and a projection of states in time.

Kumar, Zhang, Leskovec, "Predicting Dynamic Embedding Trajectory in Temporal Interaction Networks",
KDD 2019.  The invariant: both cells read the states before the event, and what is projected is the
state before the event that is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import DynamicGNN, Reads
from .chain import Chain, Scanned
from .rows import linear, pad_rows
from .scans.memory import scan_tanh
from .time_encoding import Drift
from .views import Events, Level, Nodes, Written


class JODIE(DynamicGNN):
    """JODIE, with the published decoder or the one with which it is usually compared.

    For an event of source u with destination i and features f, section 3.1:

        u' = tanh(W_1 u + W_2 i + W_3 f + W_4 d_u + b),  i' likewise with weights of its own

    `shared` gives both the same weights, for graphs whose nodes are of one kind.  Section 3.2: the
    state of a node t after its last event is u^ = (1 + t w) u, a `Drift`.

    `decoder="link"` scores a pair by W_3 relu(W_1 u^ + W_2 i^), trained with binary cross-entropy,
    as do the authors of TGN and the benchmark DyGLib; there both ends are projected.
    `decoder="distance"` is published, section 3.3: from u^, the state j of the last partner of the
    source and the static codes u_, j_ of both it predicts the destination's state and code,

        p = W_1 u^ + W_2 u_ + W_3 j + W_4 j_ + b,  score = -|p - [i, i_]|,

    and learns |p - [i, i_]|^2 + lambda_src |u' - u|^2 + lambda_dst |i' - i|^2 without negatives.

    Not as published: d is log(1 + seconds) / 10 and t as in `Drift`, where the paper takes plain
    times and its code standardises them over the whole log.  Static codes are one-hot in the paper;
    here they are fixed random vectors of length about 1 and `static_width` numbers, so that the
    weights do not grow with the nodes.  States start at zero (in the authors' code at a learned
    vector).  As in the authors' code, not the paper, the cells end in tanh, with
    `decoder="distance"` states are scaled to length 1, distances are squared in the loss, and no
    gradient goes into what is predicted nor into the state that a new one is held to.  An event
    with a kind among several adds its one-hot to f.
    """

    default_name = "jodie"

    def __init__(
        self,
        width: int = 64,
        kinds: Sequence[str] = ("event",),
        *,
        num_features: int = 0,
        num_negatives: int = 1,
        shared: bool = False,
        decoder: Literal["link", "distance"] = "link",
        static_width: int | None = None,
        lambda_src: float = 1.0,
        lambda_dst: float = 1.0,
    ) -> None:
        super().__init__()
        static_width = width if static_width is None else static_width
        for name, value in (
            *(("width", width), ("num_negatives", num_negatives), ("static_width", static_width)),
        ):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1: got {value}")
        for name, weight in (
            *(("num_features", num_features), ("lambda_src", lambda_src)),
            *(("lambda_dst", lambda_dst),),
        ):
            if weight < 0:
                raise ValueError(f"`{name}` must be at least 0: got {weight}")
        if decoder not in ("link", "distance"):
            raise ValueError(f"`decoder` must be 'link' or 'distance': got {decoder!r}")
        self.num_negatives = num_negatives
        self.num_kinds = len(kinds) if len(kinds) > 1 else 0  # columns of the one-hot
        self.num_features = num_features
        self.decoder = decoder
        self.lambdas = (lambda_src, lambda_dst)
        told = self.num_kinds + num_features + 1
        self.cells = nn.ModuleList(
            nn.Linear(2 * width + told, width) for _ in range(1 if shared else 2)
        )
        self.drift = Drift(width)
        if decoder == "link":
            self.tables = {"state": width}
            self.reads = Reads(ends=("state",), scored=("state",))
            self.source = nn.Linear(width, width)
            self.destination = nn.Linear(width, width)
            self.final = nn.Linear(width, 1)
        else:
            self.tables = {"state": width, "static": static_width}
            self.fill = {"static": "normal"}
            both = ("state", "static")
            self.reads = Reads(ends=both, scored=both, around=both, k=1)
            self.predictor = nn.Linear(2 * (width + static_width), width + static_width)

    def encode(self, events: Events) -> dict[str, Tensor]:
        """[kind, features, d] of both ends, (n, 2, told)."""
        dtype = self.drift.weight.dtype
        parts = []
        if self.num_kinds:
            parts.append(F.one_hot(events.kind, self.num_kinds).to(dtype))
        if self.num_features:
            found = 0 if events.features is None else events.features.shape[-1]
            if events.features is None or found != self.num_features:
                raise ValueError(
                    f"`num_features` must be that of the log: got {self.num_features}, "
                    f"but its events have {found}"
                )
            parts.append(events.features)
        parts = [part[:, None].expand(-1, 2, -1) for part in parts]
        elapsed = torch.log1p(events.gap).to(dtype) / 10
        return {"told": torch.cat([*parts, elapsed.unsqueeze(-1)], dim=-1)}

    def update(self, level: Level) -> Written:
        """The cell of each end, computed so that a row is the same in any level."""
        state = level.ends["state"]
        read = torch.cat([state, state.flip(1), level.encoded["told"]], dim=-1)
        after = torch.stack([self._renew(side, read[:, side]) for side in range(2)], dim=1)
        if self.decoder == "link":
            return Written({"state": after})
        change = (after - state.detach()).square().sum(-1)  # (n, 2)
        penalty = self.lambdas[0] * change[:, 0] + self.lambdas[1] * change[:, 1]
        return Written({"state": after, "static": level.ends["static"]}, penalty=penalty)

    def _renew(self, side: int, read: Tensor) -> Tensor:
        """The new states (n, width) of the sources (0) or destinations (1)."""
        cell = self.cells[min(side, len(self.cells) - 1)]
        state = torch.tanh(linear(cell, pad_rows(read)))
        if self.decoder == "distance":
            state = F.normalize(state, dim=-1)
        return state[: len(read)]

    @property
    def scans(self) -> bool:
        """With the decoder "link", which adds nothing to the cells."""
        return self.decoder == "link" and all(type(cell) is nn.Linear for cell in self.cells)

    def scan(self, chain: Chain) -> Scanned:
        """The states of all events, each end told [own state, the other's, what is told]."""
        weights, biases = [], []
        for cell in self.cells:
            assert isinstance(cell, nn.Linear)
            weights.append(cell.weight)
            biases.append(cell.bias)
        told = chain.encoded["told"]
        return Scanned({"state": scan_tanh(chain, "state", told, weights, biases)})

    def embed(self, events: Events, nodes: Nodes) -> Tensor:
        """The states projected to now, (n, m, width)."""
        projected: Tensor = self.drift(nodes.states["state"], nodes.idle)
        return projected

    def predict(self, src: Nodes) -> Tensor:
        """p, the state and static code expected of the next destination, (n, m, both widths)."""
        around = src.around
        assert around is not None
        real = around.mask.to(src.embedding.dtype)  # (n, m, 1): a new source has had no partner
        last = [around.states[name].squeeze(2) * real for name in ("state", "static")]
        known = [src.embedding, self._code(src.states["static"]), last[0], self._code(last[1])]
        return linear(self.predictor, torch.cat(known, dim=-1))

    def _code(self, static: Tensor) -> Tensor:
        return static / math.sqrt(static.shape[-1])

    def _distance(self, src: Nodes, dst: Nodes) -> Tensor:
        """The squared distance of each destination from what is expected, (n, m)."""
        found = torch.cat([dst.states["state"], self._code(dst.states["static"])], dim=-1)
        return (self.predict(src) - found.detach()).square().sum(-1)

    def loss(
        self, events: Events, src: Nodes, dst: Nodes, other_src: Nodes, other_dst: Nodes
    ) -> Tensor:
        """The loss of each event, (n,); what `lambdas` weigh is added by the update."""
        if self.decoder == "distance":
            return self._distance(src, dst).squeeze(1)
        return super().loss(events, src, dst, other_src, other_dst)

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        """The logit of each pair, or the negative distance, (n, m)."""
        if self.decoder == "distance":
            return -self._distance(src, dst).sqrt()
        by_src = linear(self.source, src.embedding)
        hidden = torch.relu(by_src + linear(self.destination, dst.embedding))
        return linear(self.final, hidden).squeeze(-1)
