"""Events as a point process between two states: what DyRep and LDG share.

A node has one state, which its events pass through a sigmoid; a pair has an intensity for each
kind of event, a function of both states.  The invariant: intensities, in loss and scores alike, are
those of the states before the event.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from .base import DynamicGNN
from .kernels.point_process import EPSILON
from .pairs import Pairs, Priced
from .rows import elementwise, linear, pad_rows, product, products
from .scans.point_process import losses_of_pairs
from .time_encoding import Drift
from .views import Events, Level, Nodes

SECONDS = (86_400.0, 3_600.0, 60.0, 1.0)
SCALES = (50.0, 7.0, 15.0, 15.0)  # of days, hours, minutes, seconds; the authors' code


def split_gap(seconds: Tensor) -> Tensor:
    """Gaps (...) in seconds as scaled (days, hours, minutes, seconds), (..., 4).

    >>> (split_gap(torch.tensor(90_061.5)) * torch.tensor(SCALES)).tolist()
    [1.0, 1.0, 1.0, 1.5]
    """
    parts = []
    rest = seconds
    for length, scale in zip(SECONDS[:-1], SCALES[:-1], strict=True):
        whole = torch.floor(rest / length)
        parts.append(whole / scale)
        rest = rest - whole * length
    return torch.stack([*parts, rest / SCALES[-1]], dim=-1)


class _ScaledSoftplus(Function):
    """psi log(1 + exp(g / psi)), g (..., kinds), psi (kinds,), with g / psi held in [-75, 75].

    The derivative by psi is a difference of two large terms; written out as one it does not cancel.
    """

    @staticmethod
    def forward(ctx: Any, g: Tensor, psi: Tensor) -> Tensor:
        ratio = (g / psi).clamp_(-75.0, 75.0)
        ctx.save_for_backward(ratio)
        return elementwise(partial(F.softplus, threshold=80.0), ratio).mul_(psi)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (ratio,) = ctx.saved_tensors
        size = ratio.abs()
        # softplus(x) - x sigmoid(x), the same for x and -x
        by_psi = F.softplus(-size).addcmul_(size, torch.sigmoid(-size))
        return grad * torch.sigmoid(ratio), (grad * by_psi).flatten(0, -2).sum(0)


class PointProcess(DynamicGNN, ABC):
    """Base of models in which events are drawn with an intensity between two states.

    After an event between u and v, with h_x what the neighbourhood of x says (DyRep, eq. 4):

        z_u' = sigmoid(W_struct h_v + W_rec z_u + W_t dt_u), and z_v' with u and v exchanged

    Intensity of kind k (eq. 1, 2, symmetrised): psi_k log(1 + exp(g / psi_k)), with
    g = (omega_k [z_u; z_v] + omega_k [z_v; z_u]) / 2 + c_k.  A bilinear one adds the interaction
    z_u^T (M_k + M_k^T) z_v / 2 of states centred on 1/2 to g.

    With `drift` the intensity reads states as they are by now, (1 + t w) z, t = log(1 + idle), a
    `Drift` as of JODIE: so it changes between events, and knows which of two nodes has rested for
    longer.  It is not in the papers, whose intensities stand still until one of the two nodes has
    an event.

    A subclass says what h_x is, in (n, 2, `num_relations` x width).
    """

    corrupts = "both"

    def __init__(
        self,
        width: int,
        num_kinds: int,
        *,
        num_negatives: int,
        bilinear: bool,
        drift: bool = False,
        num_relations: int = 1,
    ) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"`width` must be at least 1: got {width}")
        if num_negatives < 1:
            raise ValueError(f"`num_negatives` must be at least 1: got {num_negatives}")
        self.tables = {"embedding": width}
        self.fill = {"embedding": "normal"}
        self.num_negatives = num_negatives
        self.neighbor = nn.Linear(width, width)
        self.structure = nn.Linear(num_relations * width, width)
        self.recurrence = nn.Linear(width, width, bias=False)  # one bias is enough for the sum
        self.elapsed = nn.Linear(4, width, bias=False)
        self.omega = nn.Linear(2 * width, num_kinds)
        self.psi = nn.Parameter(torch.full((num_kinds,), 0.5))
        self.interaction: nn.Parameter | None = None  # (kinds, width, width)
        if bilinear:
            self.interaction = nn.Parameter(torch.randn(num_kinds, width, width) / width)
        self.drift: Drift | None = None
        if drift:
            self.drift = Drift(width)
            nn.init.zeros_(self.drift.weight)  # it starts as the model without
        for layer in (self.neighbor, self.structure, self.recurrence, self.elapsed, self.omega):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        # sigmoid(4 z - 2) has slope 1 around 1/2: a state starts as a memory of itself, where small
        # weights would forget a node within a few events
        with torch.no_grad():
            self.recurrence.weight.add_(torch.eye(width), alpha=4.0)
            self.structure.bias.sub_(2.0)

    def encode(self, events: Events) -> dict[str, Tensor]:
        """W_t dt for both ends, (n, 2, width)."""
        return {"elapsed": linear(self.elapsed, split_gap(events.gap).to(self.psi.dtype))}

    def next_states(self, level: Level, structure: Tensor) -> Tensor:
        """z' of both ends (n, 2, width), from what each one's own neighbours say.

        `structure` (n, 2, relations x width) is h before its sigmoid: -inf stands for h = 0.
        """
        z = level.ends["embedding"]
        h, z_old, elapsed = (  # (rows, ...)
            pad_rows(x.flatten(0, 1)) for x in (structure.flip(1), z, level.encoded["elapsed"])
        )
        said = linear(self.structure, torch.sigmoid(h))
        z_new = torch.sigmoid(said + linear(self.recurrence, z_old) + elapsed)
        return z_new[: 2 * len(z)].view_as(z)

    def embed(self, events: Events, nodes: Nodes) -> Tensor:
        """The states as intensities read them, (n, m, width)."""
        z = nodes.states["embedding"]
        if self.drift is None:
            return z
        drifted: Tensor = self.drift(z, nodes.idle)
        return drifted

    def intensity(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        """Intensities (n, m, kinds) of every kind between states (n, 1, width) and (n, m, width).

        The symmetrised linear form is a sum over both ends, so each needs one product only.
        """
        first, second = self.omega.weight.chunk(2, dim=1)
        omega = (first + second) / 2
        g = product(z_a, omega) + product(z_b, omega) + self.omega.bias
        if self.interaction is not None:
            between = (self.interaction + self.interaction.transpose(1, 2)) / 2
            by_kind = between.flatten(0, 1)  # (kinds x width, width), as it is symmetric
            turned = product(z_a.squeeze(1) - 0.5, by_kind).view(-1, *between.shape[:2])
            g = g + products(z_b - 0.5, turned)
        rate: Tensor = _ScaledSoftplus.apply(g, self.psi)  # type: ignore[no-untyped-call]
        return rate

    def loss(
        self, events: Events, src: Nodes, dst: Nodes, other_src: Nodes, other_dst: Nodes
    ) -> Tensor:
        """-log intensity of the event, plus the sampled intensity of what did not happen.

        Survival pairs are (source, other destination) and (other source, destination), each under
        every kind, averaged over the samples of a side (section 3.2 of DyRep's paper).
        """
        z_src, z_dst = src.embedding, dst.embedding
        happened = _of_kind(self.intensity(z_src, z_dst), events.kind)
        loss = -torch.log(happened.squeeze(1) + EPSILON)
        for ends, others in ((z_src, other_dst), (z_dst, other_src)):
            rate = self.intensity(ends, others.embedding).sum(-1)  # (n, m)
            count = others.valid.sum(1).clamp(min=1)
            loss = loss + torch.where(others.valid, rate, 0.0).sum(1) / count
        return loss

    def losses_of(self, pairs: Pairs, states: Mapping[str, Tensor]) -> Priced:
        """`loss` and `expected_idle` of pairs whose states stand in the rows of tables."""
        z = states["embedding"]
        weights = self.omega.weight, self.omega.bias, self.psi, self.interaction
        if self.drift is None:
            losses, rate = losses_of_pairs(pairs, z, *weights)
            return Priced(losses, 1.0 / (rate + EPSILON))
        read = F.embedding(torch.from_numpy(pairs.rows), z)  # (n, 2 + 2 m, width)
        drifted = self.drift(read, torch.from_numpy(pairs.idle)).flatten(0, 1)
        losses, _ = losses_of_pairs(pairs.gathered(), drifted, *weights)
        with torch.no_grad():
            kind = torch.from_numpy(pairs.kind)
            rate = _of_kind(self.intensity(read[:, :1], read[:, 1:2]), kind)
        return Priced(losses, 1.0 / (rate.squeeze(1) + EPSILON))

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        """How likely an event of that kind is now, (n, m).

        Without a drift the intensity of a pair stands still between events, and the score is the
        log density: log intensity minus its integral (eq. 1), which is the intensity times the time
        since the last event of either, in mean gaps of a node.  With a drift it is the log of the
        intensity of this moment.
        """
        rate = _of_kind(self.intensity(src.embedding, dst.embedding), events.kind)
        density = torch.log(rate + EPSILON)
        if self.drift is None:
            density = density - rate * torch.minimum(src.idle, dst.idle).to(rate.dtype)
        return density

    def expected_idle(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        """1 / intensity of the event's kind, in mean gaps, (n,).

        That is the mean of the density in time where the intensity stands still, and of a drift
        that at its start: it must not know how much time has passed.
        """
        z_src, z_dst = src.states["embedding"], dst.states["embedding"]
        rate = _of_kind(self.intensity(z_src, z_dst), events.kind)
        return 1.0 / (rate.squeeze(1) + EPSILON)

    @torch.no_grad()
    def constrain(self) -> None:
        """Keep psi in [0.1, 1000], as DyRep's authors do."""
        self.psi.clamp_(0.1, 1e3)


def _of_kind(rate: Tensor, kind: Tensor) -> Tensor:
    """The intensities (n, m) of each event's own kind (n,), of those of all kinds (n, m, kinds)."""
    return rate.gather(2, kind[:, None, None].expand(-1, rate.shape[1], 1)).squeeze(2)
