"""DyRep: representations driven by two kinds of events, associations and communications.

Trivedi, Farajtabar, Biswal, Zha, "DyRep: Learning Representations over Dynamic Graphs", ICLR 2019,
equations 1-4 and algorithm 1.  The invariant: intensities, in loss, scores and attention alike, are
those of the states before the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from ..stream import Bool, EventBatch
from .base import DynamicGNN, Reads
from .kernels import attend_links, event_rates
from .rows import linear, pad_rows
from .views import Events, Level, Nodes, Written

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
        return F.softplus(ratio, threshold=80.0).mul_(psi)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (ratio,) = ctx.saved_tensors
        size = ratio.abs()
        # softplus(x) - x sigmoid(x), the same for x and -x
        by_psi = F.softplus(-size).addcmul_(size, torch.sigmoid(-size))
        return grad * torch.sigmoid(ratio), (grad * by_psi).flatten(0, -2).sum(0)


class DyRep(DynamicGNN):
    """DyRep over the links of a graph.

    `association` names the kinds of events that make a link.  Where the log has none of them, every
    event links its ends: the first one of a pair is its association, later ones communications on
    it.  One intensity is learned for each of `kinds`.

    State of a node x with the linked neighbours N(x), for an event between u and v (eq. 4):

        h_x  = max over i in N(x) of sigmoid(q_xi (W_h z_i + b_h)),  q_x = softmax of S_x over N(x)
        z_u' = sigmoid(W_struct h_v + W_rec z_u + W_t dt_u), and z_v' with u and v exchanged

    Intensity of kind k (eq. 1, 2, symmetrised): psi_k log(1 + exp(g / psi_k)), with
    g = (omega_k [z_u; z_v] + omega_k [z_v; z_u]) / 2 + c_k.  This g is a sum over the two nodes, so
    it ranks the partners of every node alike; `intensity="bilinear"` adds the interaction
    z_u^T (M_k + M_k^T) z_v / 2 of states centred on 1/2, after Knyazev et al., "Learning Temporal
    Attention in Dynamic Graphs with Bilinear Interactions", PLoS ONE 2021.
    """

    default_name = "dyrep"
    link_tables = ("attention",)

    def __init__(
        self,
        width: int = 64,
        kinds: Sequence[str] = ("event",),
        *,
        num_negatives: int = 5,
        intensity: Literal["linear", "bilinear"] = "linear",
        association: Sequence[str] = ("AE", "association"),
    ) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"`width` must be at least 1: got {width}")
        if num_negatives < 1:
            raise ValueError(f"`num_negatives` must be at least 1: got {num_negatives}")
        if intensity not in ("linear", "bilinear"):
            raise ValueError(f"`intensity` must be 'linear' or 'bilinear': got {intensity!r}")
        self.tables = {"embedding": width}
        self.derived = {"message": width}
        self.fill = {"embedding": "normal"}
        self.reads = Reads(("embedding",), ("message",), ("embedding",), "links")
        self.num_negatives = num_negatives
        self.association = tuple(name for name in kinds if name in association)
        self.neighbor = nn.Linear(width, width)
        self.structure = nn.Linear(width, width)
        self.recurrence = nn.Linear(width, width, bias=False)  # one bias is enough for the sum
        self.elapsed = nn.Linear(4, width, bias=False)
        self.omega = nn.Linear(2 * width, len(kinds))
        self.psi = nn.Parameter(torch.full((len(kinds),), 0.5))
        self.interaction: nn.Parameter | None = None  # (kinds, width, width)
        if intensity == "bilinear":
            self.interaction = nn.Parameter(torch.randn(len(kinds), width, width) / width)
        for layer in (self.neighbor, self.structure, self.recurrence, self.elapsed, self.omega):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        # sigmoid(4 z - 2) has slope 1 around 1/2: a state starts as a memory of itself, where small
        # weights would forget a node within a few events
        with torch.no_grad():
            self.recurrence.weight.add_(torch.eye(width), alpha=4.0)
            self.structure.bias.sub_(2.0)

    def makes_link(self, batch: EventBatch, kinds: Sequence[str]) -> Bool | None:
        """Associations link; everything does where the log names no association."""
        if not self.association:
            return None
        codes = [code for code, name in enumerate(kinds) if name in self.association]
        return np.isin(batch.kind, codes)

    def first_links(self, degree: Tensor) -> dict[str, Tensor]:
        """Attention starts even over the links of a node."""
        return {"attention": 1.0 / degree}

    def encode(self, events: Events) -> dict[str, Tensor]:
        """W_t dt for both ends, (n, 2, width)."""
        return {"elapsed": linear(self.elapsed, split_gap(events.gap).to(self.psi.dtype))}

    def derive(self, states: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        """W_h z + b_h, shared by all neighbours that read this version of z."""
        return {"message": linear(self.neighbor, states["embedding"])}

    def update(self, level: Level) -> Written:
        """Equation 4 for both ends, and algorithm 1 for the attention of their links."""
        weight, attention = self.attend(level)
        message = weight.unsqueeze(-1) * level.neighbors["message"]  # (n, 2, k, width)
        # the weights are positive, so the greatest sigmoid is the sigmoid of the greatest message;
        # amax shares a gradient between equal ones, whatever the order
        message = message.masked_fill(~level.mask.unsqueeze(-1), -torch.inf)
        greatest = message.amax(2).flip(1)  # (n, 2, width), of the other end
        z = level.ends["embedding"]
        greatest, z_old, elapsed = (  # (rows, width)
            pad_rows(x.flatten(0, 1)) for x in (greatest, z, level.encoded["elapsed"])
        )
        z_new = torch.sigmoid(
            self.structure(torch.sigmoid(greatest)) + self.recurrence(z_old) + elapsed
        )
        return Written({"embedding": z_new[: 2 * len(z)].view_as(z)}, {"attention": attention})

    def attend(self, level: Level) -> tuple[Tensor, Tensor]:
        """Softmax of S over the links before each event, and its rows after (algorithm 1).

        Both (n, 2, k).  Only rows that hold a link to the partner change; they sum to 1.
        """
        links = level.links
        assert links is not None
        device = level.kind.device
        z, kind, attention, before, after, partner, omega, bias, psi = (
            tensor.detach().cpu().numpy()
            for tensor in (
                level.ends["embedding"],
                level.kind,
                links.values["attention"],
                level.mask,
                links.after,
                links.partner,
                self.omega.weight,
                self.omega.bias,
                self.psi,
            )
        )
        between = np.empty((0, 0, 0), z.dtype)
        if self.interaction is not None:
            between = self.interaction.detach().cpu().numpy()
        rate = np.empty(len(kind))
        event_rates(z, kind, omega, bias, psi, between, rate)
        weight, renewed = np.empty_like(attention), np.empty_like(attention)
        attend_links(attention, before, after, partner, rate, weight, renewed)
        return torch.from_numpy(weight).to(device), torch.from_numpy(renewed).to(device)

    def intensity(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        """Intensities (n, m, kinds) of every kind between states (n, 1, width) and (n, m, width).

        The symmetrised linear form is a sum over both ends, so each needs one product only.
        """
        first, second = self.omega.weight.chunk(2, dim=1)
        omega = (first + second) / 2
        g = F.linear(z_a, omega) + F.linear(z_b, omega) + self.omega.bias
        if self.interaction is not None:
            between = (self.interaction + self.interaction.transpose(1, 2)) / 2
            turned = torch.einsum("nud,kde->nek", z_a - 0.5, between)  # (n, width, kinds); u is 1
            g = g + torch.bmm(z_b - 0.5, turned)
        rate: Tensor = _ScaledSoftplus.apply(g, self.psi)  # type: ignore[no-untyped-call]
        return rate

    def loss(
        self, events: Events, src: Nodes, dst: Nodes, other_src: Nodes, other_dst: Nodes
    ) -> Tensor:
        """-log intensity of the event, plus the sampled intensity of what did not happen.

        Survival pairs are (source, other destination) and (other source, destination), each under
        every kind, averaged over the samples of a side (section 3.2 of the paper).
        """
        z_src, z_dst = src.states["embedding"], dst.states["embedding"]
        happened = self.intensity(z_src, z_dst).squeeze(1).gather(1, events.kind[:, None])
        loss = -torch.log(happened.squeeze(1) + 1e-10)
        for ends, others in ((z_src, other_dst), (z_dst, other_src)):
            rate = self.intensity(ends, others.states["embedding"]).sum(-1)  # (n, m)
            count = others.valid.sum(1).clamp(min=1)
            loss = loss + torch.where(others.valid, rate, 0.0).sum(1) / count
        return loss

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        """Log density of an event of that kind now: log intensity minus its integral (eq. 1).

        Between events the intensity of a pair stands still, so that the integral is the intensity
        times the time since the last event of either; time is counted in mean gaps of a node.
        """
        rate = self.intensity(src.states["embedding"], dst.states["embedding"])
        kind = events.kind[:, None, None].expand(-1, rate.shape[1], 1)
        rate = rate.gather(2, kind).squeeze(2)  # (n, m)
        idle = torch.minimum(src.idle, dst.idle).to(rate.dtype)
        return torch.log(rate + 1e-10) - rate * idle

    @torch.no_grad()
    def constrain(self) -> None:
        """Keep psi in [0.1, 1000], as the authors do."""
        self.psi.clamp_(0.1, 1e3)
