"""DyRep: representations driven by two kinds of events, associations and communications.

Trivedi, Farajtabar, Biswal, Zha, "DyRep: Learning Representations over Dynamic Graphs", ICLR 2019,
equations 1-4 and algorithm 1.  The invariant: intensities, in loss, scores and attention alike, are
those of the states before the event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..stream import Bool, EventBatch
from .base import Reads
from .chain import Chain, Scanned
from .kernels.dyrep import Intensity
from .kernels.links import attend_links, event_rates
from .point_process import PointProcess
from .rows import linear
from .scans.dyrep import scan_dyrep
from .views import Level, Written


class DyRep(PointProcess):
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

    With `drift` the intensities of loss and score, not those of algorithm 1, know how long each of
    the nodes has rested (`PointProcess`).
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
        drift: bool = False,
        association: Sequence[str] = ("AE", "association"),
    ) -> None:
        if intensity not in ("linear", "bilinear"):
            raise ValueError(f"`intensity` must be 'linear' or 'bilinear': got {intensity!r}")
        super().__init__(
            *(width, len(kinds)),
            num_negatives=num_negatives,
            bilinear=intensity == "bilinear",
            drift=drift,
        )
        self.derived = {"message": width}
        self.reads = Reads(("embedding",), ("message",), ("embedding",), neighborhood="links")
        self.association = tuple(name for name in kinds if name in association)

    def makes_link(self, batch: EventBatch, kinds: Sequence[str]) -> Bool | None:
        """Associations link; everything does where the log names no association."""
        if not self.association:
            return None
        codes = [code for code, name in enumerate(kinds) if name in self.association]
        return np.isin(batch.kind, codes)

    def first_links(self, degree: Tensor) -> dict[str, Tensor]:
        """Attention starts even over the links of a node."""
        return {"attention": 1.0 / degree}

    def derive(self, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """W_h z + b_h, shared by all neighbours that read this version of z."""
        return {"message": linear(self.neighbor, states["embedding"])}

    def update(self, level: Level) -> Written:
        """Equation 4 for both ends, and algorithm 1 for the attention of their links."""
        weight, attention = self.attend(level)
        message = weight.unsqueeze(-1) * level.neighbors["message"]  # (n, 2, k, width)
        # the weights are positive, so the greatest sigmoid is the sigmoid of the greatest message;
        # amax shares a gradient between equal ones, whatever the order
        message = message.masked_fill(~level.mask.unsqueeze(-1), -torch.inf)
        z = self.next_states(level, message.amax(2))
        return Written({"embedding": z}, {"attention": attention})

    @property
    def scans(self) -> bool:
        """For every intensity and width."""
        return True

    def scan(self, chain: Chain) -> Scanned:
        """Equation 4 and algorithm 1, event after event."""
        z = scan_dyrep(
            *(chain, self.pair_weights(), self.structure.weight, self.recurrence.weight),
            *(self.structure.bias, self.neighbor.weight, self.neighbor.bias),
        )
        drawn = [self.psi, self.omega.weight, self.omega.bias]
        drawn += [self.neighbor.weight, self.neighbor.bias]
        drawn += [] if self.interaction is None else [self.interaction]
        if math.isnan(sum(float(weight.detach().sum()) for weight in drawn)):
            z = z * math.nan  # a maximum would pass over what these make no number of
        return Scanned({"embedding": z})

    def pair_weights(self) -> Intensity:
        """The weights of an intensity as the scan reads them."""
        width = self.tables["embedding"]
        between = np.empty((0, 0, 0))
        if self.interaction is not None:
            between = self.interaction.detach().double().numpy()
            between = (between + between.transpose(0, 2, 1)) / 2
        omega, bias, psi = (
            p.detach().double().numpy() for p in (self.omega.weight, self.omega.bias, self.psi)
        )
        return Intensity((omega[:, :width] + omega[:, width:]) / 2, bias, psi, between)

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
