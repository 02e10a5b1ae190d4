"""TGN: a memory for each node, renewed by its events, read together with those of its neighbours.

Rossi, Chamberlain, Frasca, Eynard, Monti, Bronstein, "Temporal Graph Networks for Deep Learning on
Dynamic Graphs", ICML 2020 workshop (arXiv:2006.10637).  The invariant: a message is made of the
memories before its event, and a prediction of those before the event that is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import Attention, Near
from .base import DynamicGNN, Reads
from .chain import Chain, Scanned
from .decoder import pair_logits, pair_losses
from .pairs import Pairs, Priced
from .rows import linear, pad_rows, product
from .scans.attention import losses_of_rows
from .scans.memory import Times, scan_gru, scan_tanh
from .time_encoding import Drift, TimeEncoding, can_compile
from .views import Events, Level, Nodes, rows_of


class TGN(DynamicGNN):
    """TGN with one layer over the `k` most recent events of a node.

    An event between i and j tells each end (section 3.1, identity messages)

        m_i = [s_i, s_j, e, phi(dt_i)],  s_i' = cell(m_i, s_i),  and m_j with i and j exchanged

    where s is the memory, zero at first, dt the time since the end's own last event, phi a
    `TimeEncoding` and e the features of the event, before them a one-hot of its kind if there are
    several.  `memory` names the cell.  `aggregation` says which message stands where a stale batch
    has several for a node, the last or the mean; one event at a time there is never more than one.

    `embedding` makes z_i of a node and its neighbours' s_j and e_ij:

    - "attention": z_i = W_s s_i + over heads, sum over j of a_ij (W_v s_j + W_e [phi(t_ij), e_ij])
      with a_ij the softmax over j of (W_q s_i)^T (W_k s_j + W_e [phi(t_ij), e_ij]) / sqrt(width of
      a head).  This is `TransformerConv` of torch_geometric (Shi et al., IJCAI 2021), which its
      TGN uses; the paper has W_s s_i and the sum go through an MLP.  W_k has no bias: it would add
      the same to all j.
    - "sum": z_i = W_2 [s_i, relu(sum over j of W_1 [s_j, phi(t_ij), e_ij])]
    - "time": z_i = (1 + dt w) s_i, a `Drift`
    - "identity": z_i = s_i

    t_ij is the time since the event with j ("query", as published), or the time from that event to
    the last one of j ("neighbor", as in torch_geometric's example).  The frequencies of phi are
    "fixed", or "learned" as published: `TimeEncoding` says what that costs.  A pair is scored by an
    MLP, W_3 relu(W_1 z_src + W_2 z_dst), and trained with binary cross-entropy.  There is no
    dropout, as no two executions would agree, and no node features, as an event log has none.
    """

    default_name = "tgn"

    def __init__(
        self,
        width: int = 64,
        kinds: Sequence[str] = ("event",),
        *,
        num_features: int = 0,
        num_negatives: int = 1,
        time_width: int | None = None,
        k: int = 10,
        heads: int = 2,
        memory: Literal["gru", "rnn"] = "gru",
        aggregation: Literal["last", "mean"] = "last",
        embedding: Literal["attention", "sum", "identity", "time"] = "attention",
        time_from: Literal["query", "neighbor"] = "query",
        frequencies: Literal["fixed", "learned"] = "fixed",
    ) -> None:
        super().__init__()
        time_width = width if time_width is None else time_width
        for name, value in (
            *(("width", width), ("num_negatives", num_negatives), ("time_width", time_width)),
            *(("k", k), ("heads", heads)),
        ):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1: got {value}")
        if num_features < 0:
            raise ValueError(f"`num_features` must be at least 0: got {num_features}")
        for name, given, known in (
            ("memory", memory, ("gru", "rnn")),
            ("aggregation", aggregation, ("last", "mean")),
            ("embedding", embedding, ("attention", "sum", "identity", "time")),
            ("time_from", time_from, ("query", "neighbor")),
            ("frequencies", frequencies, ("fixed", "learned")),
        ):
            if given not in known:
                choices = ", ".join(map(repr, known))
                raise ValueError(f"`{name}` must be one of {choices}: got {given!r}")
        self.tables = {"memory": width}
        self.num_negatives = num_negatives
        self.aggregation = aggregation
        self.num_kinds = len(kinds) if len(kinds) > 1 else 0  # columns of the one-hot
        self.num_features = num_features
        self.time_from = time_from
        self.timeless = embedding == "identity" or (
            time_from == "neighbor" and embedding in ("attention", "sum")
        )
        told = self.num_kinds + num_features + time_width
        self.time = TimeEncoding(time_width, learned=frequencies == "learned")
        self.cell = (nn.GRUCell if memory == "gru" else nn.RNNCell)(2 * width + told, width)
        self.attention = Attention(width, told, heads) if embedding == "attention" else None
        self.sum = _Sum(width, told) if embedding == "sum" else None
        self.drift = Drift(width) if embedding == "time" else None
        with_neighbors = embedding in ("attention", "sum")
        self.reads = Reads(
            ends=("memory",),
            scored=("memory",),
            around=("memory",) if with_neighbors else (),
            k=k if with_neighbors else 0,
        )
        self.source = nn.Linear(width, width)
        self.destination = nn.Linear(width, width)
        self.final = nn.Linear(width, 1)

    def _event(self, kind: Tensor, features: Tensor | None) -> list[Tensor]:
        """What is known of events without their time: [(..., kinds), (..., num_features)]."""
        parts = []
        if self.num_kinds:
            each = torch.eye(self.num_kinds, dtype=self.final.weight.dtype, device=kind.device)
            parts.append(F.embedding(kind, each))
        if self.num_features:
            if features is None or features.shape[-1] != self.num_features:
                found = 0 if features is None else features.shape[-1]
                raise ValueError(
                    f"`num_features` must be that of the log: got {self.num_features}, "
                    f"but its events have {found}"
                )
            parts.append(features)
        return parts

    def encode(self, events: Events) -> dict[str, Tensor]:
        """What both ends are told beside memories, (n, 2, told): [kind, features, phi(dt)]."""
        event = [
            part[:, None].expand(-1, 2, -1) for part in self._event(events.kind, events.features)
        ]
        return {"told": torch.cat([*event, self.time(events.gap)], dim=-1)}

    def encode_chain(self, events: Events) -> dict[str, Tensor]:
        """To a GRU, as `encode`, or [kind, features] (n, 1, known) and seconds `gap` (n, 2)."""
        coded = type(self).encode is TGN.encode and type(self.time) is TimeEncoding
        if not (coded and isinstance(self.cell, nn.GRUCell)):
            return dict(self.encode(events))
        nothing = self.final.weight.new_empty(len(events.gap), 0)
        known = torch.cat([nothing, *self._event(events.kind, events.features)], dim=-1)
        return {"known": known.unsqueeze(1), "gap": events.gap}

    def message(self, level: Level) -> Tensor:
        """[own memory, the other's memory, what is told], (n, 2, 2 width + told)."""
        memory = level.ends["memory"]
        return torch.cat([memory, memory.flip(1), level.encoded["told"]], dim=-1)

    def renew(self, states: Mapping[str, Tensor], message: Tensor) -> dict[str, Tensor]:
        """The cell, its rows computed in multiples so that they are the same in any level."""
        memory = states["memory"]
        return {"memory": self.cell(pad_rows(message), pad_rows(memory))[: len(memory)]}

    @property
    def scans(self) -> bool:
        """As torch's own cells do."""
        cell = self.cell
        return type(cell) is nn.GRUCell or (
            type(cell) is nn.RNNCell and cell.nonlinearity == "tanh"
        )

    def scan(self, chain: Chain) -> Scanned:
        """The memories of all events, each end told [own memory, the other's, what is told]."""
        encoded, cell = chain.encoded, self.cell
        if isinstance(cell, nn.GRUCell):
            known, times = encoded.get("told"), None
            if known is None:
                known, seconds = encoded["known"], encoded["gap"].double().contiguous().numpy()
                times = Times(seconds, self.time.frequency(), self.time.bias)
            return Scanned({"memory": scan_gru(chain, "memory", known, cell, times)})
        told = encoded["told"]
        width = cell.hidden_size
        own, rest = cell.weight_ih[:, :width] + cell.weight_hh, cell.weight_ih[:, width:]
        weight = torch.cat([own, rest], dim=1)
        bias = cell.bias_ih + cell.bias_hh
        return Scanned({"memory": scan_tanh(chain, "memory", told, [weight], [bias])})

    def embed(self, events: Events, nodes: Nodes) -> Tensor:
        """z of each node, (n, m, width)."""
        memory, around = nodes.states["memory"], nodes.around
        if around is not None:
            seconds = around.gap
            if self.time_from == "neighbor":
                seconds = seconds - around.idle_gap
            event = self._event(around.kind, around.features)  # each (n, m, k, ...)
            if self.attention is not None and can_compile(memory.device, memory.dtype):
                known = torch.cat([memory.new_empty(*seconds.shape, 0), *event], dim=-1)
                table, own, near = rows_of("memory", nodes.states, around.states)
                return self.attention.of_rows(
                    *(table, own, near, around.mask, self.time, seconds, known)
                )
            layer = self.attention or self.sum
            assert layer is not None
            edges = torch.cat([self.time(seconds), *event], dim=-1)
            z: Tensor = layer(memory, around.states["memory"], edges, around.mask)
            return z
        return memory if self.drift is None else self.drift(memory, nodes.idle)

    def loss(
        self, events: Events, src: Nodes, dst: Nodes, other_src: Nodes, other_dst: Nodes
    ) -> Tensor:
        """The loss of each event, (n,), as that of other models, its pairs scored together."""
        ends = src.embedding, dst.embedding, other_dst.embedding
        return pair_losses(*ends, other_dst.valid, *self._decoder())

    def losses_of(self, pairs: Pairs, states: Mapping[str, Tensor]) -> Priced | None:
        """With "attention" on a CPU, the same from rows."""
        memory, around, attention = states["memory"], pairs.around, self.attention
        compiles = can_compile(memory.device, memory.dtype)
        if attention is None or around is None or pairs.other_src.size or not compiles:
            return None
        n, m, k = around.rows.shape
        seconds = around.gap - around.idle_gap if self.time_from == "neighbor" else around.gap
        known = memory.new_empty(n, m, k, 0).numpy()
        if self.num_kinds or self.num_features:
            kind = torch.from_numpy(around.log.kind[around.event].astype(np.int64))
            told = around.log.features
            features = None if told is None else torch.from_numpy(told[around.event]).to(memory)
            known = torch.cat(self._event(kind, features), dim=-1).numpy()
        rows = np.concatenate([pairs.ends, pairs.other_dst], axis=1)  # (n, m)
        lists = (around.rows, around.mask, seconds, known)
        flat = [each.reshape(n * m, *each.shape[2:]) for each in lists]
        near = Near(rows.ravel(), flat[0], flat[1], flat[2], flat[3], pairs.num_base)
        layers = attention.layers()
        decoder = [each for layer in self._decoder() for each in (layer.weight, layer.bias)]
        return Priced(
            losses_of_rows(
                *(memory, near, pairs.other_dst_valid, self.time.frequency(), self.time.bias),
                *(layers, attention.heads, tuple(decoder), pairs.weight),
            )
        )

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        """The logit of each pair, (n, m)."""
        return pair_logits(src.embedding, dst.embedding, *self._decoder())

    def _decoder(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.source, self.destination, self.final


class _Sum(nn.Module):
    """The sum over neighbours, taken before its linear layer."""

    def __init__(self, width: int, edge_width: int) -> None:
        super().__init__()
        self.near = nn.Linear(width + edge_width, width)
        self.both = nn.Linear(2 * width, width)

    def forward(self, own: Tensor, near: Tensor, edges: Tensor, mask: Tensor) -> Tensor:
        """(n, m, width) of nodes, their neighbours (n, m, k, ...) and which of these are real."""
        real = mask.to(own.dtype).unsqueeze(-2)  # (n, m, 1, k)
        total = torch.cat([real @ near, real @ edges], dim=-1).squeeze(-2)
        count = real.sum(-1)  # (n, m, 1)
        heard = product(total, self.near.weight) + count * self.near.bias
        return linear(self.both, torch.cat([own, torch.relu(heard)], dim=-1))
