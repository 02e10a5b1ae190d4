"""LDG: DyRep over a latent graph, whose relations an encoder draws at every event.

Knyazev, Augusta, Taylor, "Learning Temporal Attention in Dynamic Graphs with Bilinear
Interactions", PLoS ONE 2021; the encoder is that of Kipf et al., "Neural Relational Inference for
Interacting Systems", ICML 2018.  The invariant: what is drawn at an event is a function of the
states before it and of (seed, position), so that every executor draws the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from .base import Reads
from .chain import Chain, Scanned
from .kernels.perceptron import EPSILON as NORM_EPSILON
from .point_process import PointProcess
from .rows import linear, pad_rows, product
from .scans.ldg import Drawing, scan_ldg
from .time_encoding import Drift
from .views import Level, Written

NO_EDGE = {1: 0.95, 2: 0.9, 3: 0.91}
"""The prior of "no edge" by number of relations, the authors' code; 0.9 for more of them."""

EPSILON = 1e-7


class Perceptron(nn.Module):
    """Two layers with ELU and LayerNorm, of padded rows (a multiple of `ROWS`, inputs).

    The authors normalise over a batch, which mixes its events; a layer norm sees one row only.
    """

    def __init__(self, inputs: int, width: int, *, norm: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width) if norm else None
        for layer in (self.first, self.second):
            nn.init.xavier_normal_(layer.weight)
            nn.init.constant_(layer.bias, 0.1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.after_first(linear(self.first, rows))

    def after_first(self, rows: Tensor) -> Tensor:
        """What follows the first linear layer, whose output is `rows`."""
        rows = F.elu(linear(self.second, F.elu(rows)))
        return rows if self.norm is None else self.norm(rows)


class _Harden(Function):
    """One-hot of the greatest of the last dimension, with the gradient of the soft one."""

    @staticmethod
    def forward(ctx: Any, soft: Tensor) -> Tensor:
        return torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class LDG(PointProcess):
    """LDG over the links of a graph: every event links its ends, and may relate them.

    At an event between u and v the encoder reads the states before it: those of both ends and of
    the context C, all known nodes if there are at most `num_sampled` of them and as many drawn at
    random otherwise.  With f1 to f4 perceptrons of two layers, for (u, v), and (v, u) likewise:

        h_i = f1(z_i),  h'_u = mean over j in C and v of f2([h_u; h_j]),  h''_u = f3(h'_u)
        logits = W f4([h''_u; h''_v; f2([h_u; h_v])])
        S_uv = softmax((logits + Gumbel noise) / `temperature`)

    S_uv has one number for each of `num_relations`; if `sparse`, a further class of the softmax
    stands for "no edge".  It is kept on the link, one-hot if `hard` (the gradient is that of the
    soft one), until the next event of the pair.  The fresh one serves its own event already, and so
    trains the encoder; those of other links carry no gradient.

    Its rows, normalised over the links of a node for each relation r, are DyRep's attention (eq. 4
    of DyRep) to the neighbours N_r(x) that are so related:

        q_xi = softmax of S_x,r over N_r(x),  N_r(x) = those with S_xi,r > 0
        h_x,r = max over i in N_r(x) of sigmoid(q_xi (W_h z_i + b_h)), or 0 without any

    and the h_x,r of all relations, side by side, are h_x in z_u' = sigmoid(W_struct h_v + W_rec z_u
    + W_t dt_u).  The intensity is bilinear, symmetrised, in states centred on 1/2 (which leaves
    linear terms, as DyRep's); with `drift` it knows how long each node has rested (`PointProcess`).
    The loss adds `kl_weight` times KL(softmax(logits) || prior), the mean of both directions; the
    prior of "no edge" is `NO_EDGE`, and the relations share the rest evenly.  Links that stand
    before the first event start with the prior of a relation in place of a draw.

    The authors encode the states after the event, all pairs of nodes at a time, and let only later
    events see S; their S is not confined to links, and is drawn soft in training.
    """

    default_name = "ldg"

    def __init__(
        self,
        width: int = 64,
        kinds: Sequence[str] = ("event",),
        *,
        num_negatives: int = 5,
        drift: bool = False,
        num_relations: int = 2,
        sparse: bool = True,
        hard: bool = True,
        temperature: float = 0.5,
        kl_weight: float = 1.0,
        num_sampled: int = 64,
    ) -> None:
        if num_relations < 1:
            raise ValueError(f"`num_relations` must be at least 1: got {num_relations}")
        if num_relations + sparse < 2:
            raise ValueError("`num_relations` must be at least 2 where `sparse` is False: got 1")
        if kl_weight < 0.0:
            raise ValueError(f"`kl_weight` must not be negative: got {kl_weight}")
        if temperature <= 0.0:
            raise ValueError(f"`temperature` must be positive: got {temperature}")
        super().__init__(
            *(width, len(kinds)),
            num_negatives=num_negatives,
            bilinear=True,
            drift=drift,
            num_relations=num_relations,
        )
        self.num_relations, self.sparse, self.hard = num_relations, sparse, hard
        self.temperature, self.kl_weight = temperature, kl_weight
        no_edge = NO_EDGE.get(num_relations, 0.9) if sparse else 0.0
        self.relation_prior = (1.0 - no_edge) / num_relations
        prior = [no_edge] * sparse + [self.relation_prior] * num_relations
        self.num_classes = len(prior)
        self.log_prior: Tensor
        exact = torch.tensor(prior, dtype=torch.float64).log()
        self.register_buffer("log_prior", exact, persistent=False)
        self.link_tables = tuple(f"relation{r}" for r in range(num_relations))
        self.derived = {"message": width, "receiver": width, "sender": width}
        self.reads = Reads(
            ends=("embedding", "receiver", "sender"),
            neighbors=("message",),
            scored=("embedding",),
            neighborhood="links",
            sampled=("sender",),
            num_sampled=num_sampled,
            noise=2 * self.num_classes,
        )
        self.f1 = Perceptron(width, width)
        self.f2 = Perceptron(2 * width, width)
        self.f3 = Perceptron(width, width)
        self.f4 = Perceptron(3 * width, width, norm=False)
        self.relation = nn.Linear(width, self.num_classes)
        nn.init.xavier_normal_(self.relation.weight)
        nn.init.constant_(self.relation.bias, 0.1)

    def first_links(self, degree: Tensor) -> dict[str, Tensor]:
        """Links that nothing has drawn yet hold the expected draw of the prior."""
        return {name: torch.full_like(degree, self.relation_prior) for name in self.link_tables}

    def derive(self, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """W_h z + b_h, and the two halves of the first layer of f2, of f1(z)."""
        count = len(states["embedding"])
        z = pad_rows(states["embedding"])  # once for all layers
        h = self.f1(z)
        own, other = self.f2.first.weight.chunk(2, dim=1)
        return {
            "message": linear(self.neighbor, z)[:count],
            "receiver": product(h, own, self.f2.first.bias)[:count],
            "sender": product(h, other)[:count],
        }

    def update(self, level: Level) -> Written:
        """Draw S of the event, attend with it, and renew the states of both ends."""
        links = level.links
        assert links is not None
        logits = self.encode_pair(level)  # (n, 2, classes)
        fresh = self.draw(logits, level)  # (n, 2, relations)
        stored = torch.stack([links.values[name] for name in self.link_tables], dim=-1)
        related = torch.where(links.partner.unsqueeze(-1), fresh.unsqueeze(2), stored)
        weight, mask = self.attend(related, links.after)  # (n, 2, k, relations)
        message = weight.unsqueeze(-1) * level.neighbors["message"].unsqueeze(3)
        message = message.masked_fill(
            ~mask.unsqueeze(-1), -torch.inf
        )  # (n, 2, k, relations, width)
        z = self.next_states(level, message.amax(2).flatten(2))
        log_share = logits.log_softmax(-1)
        divergence = (
            (log_share.exp() * (log_share - self.log_prior.to(logits.dtype))).sum(-1).mean(1)
        )
        kept = related.detach().unbind(-1)
        return Written(
            {"embedding": z},
            dict(zip(self.link_tables, kept, strict=True)),
            self.kl_weight * divergence,
        )

    @property
    def scans(self) -> bool:
        """For all options, with the layers that are made here."""
        known = (type(self), Perceptron, nn.Linear, nn.LayerNorm, Drift)
        return all(
            type(module) in known and getattr(module, "eps", NORM_EPSILON) == NORM_EPSILON
            for module in self.modules()
        )

    def scan(self, chain: Chain) -> Scanned:
        """`update`, event after event."""
        unread = ("omega", "psi", "interaction", "elapsed", "drift")
        weights = {n: p for n, p in self.named_parameters() if n.split(".")[0] not in unread}
        drawing = Drawing(self.link_tables, self.temperature, self.hard, self.log_prior)
        z, divergence = scan_ldg(chain, drawing, weights)
        return Scanned({"embedding": z}, self.kl_weight * divergence)

    def encode_pair(self, level: Level) -> Tensor:
        """The logits (n, 2, classes) of S_uv and S_vu."""
        assert level.sampled_mask is not None
        receiver, partner = level.ends["receiver"], level.ends["sender"].flip(1)
        n, _, width = receiver.shape
        near = level.sampled["sender"].unsqueeze(1).expand(n, 2, -1, width)
        context = torch.cat([partner.unsqueeze(2), near], dim=2)  # (n, 2, 1 + s, width)
        context = receiver.unsqueeze(2) + context
        rows = self.f2.after_first(pad_rows(context.flatten(0, 2)))
        edges = rows[: context.shape[:-1].numel()].view(context.shape)
        mask = F.pad(level.sampled_mask, (1, 0), value=True)  # (n, 1 + s)
        share = mask.to(edges.dtype) / mask.sum(1, keepdim=True)
        mean = (edges * share[:, None, :, None]).sum(2)  # (n, 2, width)
        node = self.f3(pad_rows(mean.flatten(0, 1)))[: 2 * n].view(n, 2, width)
        pair = torch.cat([node, node.flip(1), edges[:, :, 0]], dim=-1)
        logits = linear(self.relation, self.f4(pad_rows(pair.flatten(0, 1))))
        return logits[: 2 * n].view(n, 2, -1)

    def draw(self, logits: Tensor, level: Level) -> Tensor:
        """S of both directions, (n, 2, relations), from `logits` (n, 2, classes)."""
        assert level.noise is not None
        gumbel = -torch.log(-torch.log(level.noise)).to(logits.dtype).view_as(logits)
        share = torch.softmax((logits + gumbel) / self.temperature, dim=-1)
        drawn: Tensor = _Harden.apply(share) if self.hard else share  # type: ignore[no-untyped-call]
        return drawn[..., 1:] if self.sparse else drawn

    def attend(self, related: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """The weights q and which neighbours are related, both (n, 2, k, relations)."""
        mask = after.unsqueeze(-1) & (related > EPSILON)
        # in float64, a sum over links does not depend on how far its row is padded
        total = related.sum(2, keepdim=True, dtype=torch.float64).to(related.dtype)
        power = torch.exp(related / (total + EPSILON)) * mask
        total = power.sum(2, keepdim=True, dtype=torch.float64).to(related.dtype)
        return power / (total + EPSILON), mask
