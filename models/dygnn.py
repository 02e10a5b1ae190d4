"""DyGNN: a time LSTM for each of two roles, whose news is propagated to recent neighbours.

Ma, Guo, Ren, Tang, Yin, "Streaming Graph Neural Networks", SIGIR 2020.  The invariant: an event
writes its ends and their neighbours, and is scored from the states before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import DynamicGNN, Reads
from .chain import Chain, Scanned
from .rows import product
from .scans.dygnn import scan_dygnn
from .views import Events, Level, Nodes, Written

HOUR = 3600.0
ROLES = ("head", "tail")  # of source and destination


class TimeLSTM(nn.Module):
    """LSTM cells whose short-term memory fades with time, one for each role, computed together.

    Of a cell c, a hidden state h, an input x and a decay g (Baytas et al., "Patient Subtyping via
    Time-Aware LSTM Networks", KDD 2017):

        s = tanh(W_s c + b_s),  c* = c - s + g s
        [i, f, o, n] = W [x; h] + b,  c' = sigmoid(f) c* + sigmoid(i) tanh(n)
        h' = sigmoid(o) tanh(c')
    """

    def __init__(self, width: int, num_roles: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(width)  # as torch's own cells
        self.short = nn.Parameter(torch.empty(num_roles, width, width))
        self.short_bias = nn.Parameter(torch.empty(num_roles, 1, width))
        self.gates = nn.Parameter(torch.empty(num_roles, 2 * width, 4 * width))
        self.gates_bias = nn.Parameter(torch.empty(num_roles, 1, 4 * width))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self, x: Tensor, cell: Tensor, hidden: Tensor, decay: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The next cell and hidden state; all (roles, n, width), `decay` (roles, n, 1)."""
        short = torch.tanh(torch.baddbmm(self.short_bias, cell, self.short))
        cell = torch.addcmul(cell, short, decay - 1.0)
        gates = torch.baddbmm(self.gates_bias, torch.cat([x, hidden], dim=-1), self.gates)
        width = cell.shape[-1]
        enter, keep, show = torch.sigmoid(gates[..., : 3 * width]).chunk(3, dim=-1)
        cell = torch.addcmul(keep * cell, enter, torch.tanh(gates[..., 3 * width :]))
        return cell, show * torch.tanh(cell)


@dataclass(frozen=True, slots=True)
class Reach:
    """The members of events that an end reaches in one role."""

    fade: Tensor  # (n, p, 2) g(dt_n) in that role, 0 of what is no neighbour
    roles: Tensor  # (n, p, 2, 1) bool: where that is not 0
    members: Tensor  # (n, p, 1) bool: in either role
    hides: Tensor  # (n, p, 1) what takes the others out of a softmax


class DyGNN(DynamicGNN):
    """DyGNN over the `k` most recent events of each end.

    A node has a cell c and a hidden state h for each of its roles, head (source) and tail
    (destination), and a representation z.  With g(dt) = 1 / ln(e + `decay` dt), dt in hours, an
    event from u to v makes of the states before it:

        interact   e_u = tanh(A_1 z_u + B_1 z_v + a_1),  e_v = tanh(A_2 z_u + B_2 z_v + a_2)
        update     (c^head_u, h^head_u) by `TimeLSTM` with e_u and g(time since u was an end last),
                   (c^tail_v, h^tail_v) with e_v and that of v
        merge      z_x = tanh(P h^head_x + Q h^tail_x + p) of both ends
        propagate  from u with e_u: first to its heads (nodes with an earlier event to u), then to
                   its tails (nodes to which u had an earlier event); then from v with e_v likewise.
                   For a neighbour n of x in a role: a_n = softmax over n of z_n^T M z_x, and

                   c^role_n += a_n g(dt_n) T_(x, role) e_x,  h^role_n = tanh(c^role_n),  z_n merged

    where dt_n is the time since the last event of that pair in that direction.  Each step sees what
    the one before it wrote.  The published code leaves tails unweighted by a slip; here both roles
    are.  The paper propagates to all neighbours met within a time threshold (unbounded in its
    code); here it is those of the last `k` events of each end, which bounds the cost of an event.

    The score of a pair is U z_u . V z_v; the loss of an event is the mean binary cross-entropy of
    its own pair and of those with a corrupted destination or source.  Self loops apply both roles
    to one node, and make it a head and a tail of itself.

    The representation of a new node is drawn from N(0, 1), as in the published code; its cells and
    hidden states are zero, from which the model learns faster than from the noise with which that
    code fills them too.
    """

    default_name = "dygnn"
    writes = "neighbors"
    corrupts = "both"

    def __init__(
        self,
        width: int = 64,
        kinds: Sequence[str] = ("event",),
        *,
        num_negatives: int = 5,
        k: int = 20,
        decay: float = 2.0,
    ) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"`width` must be at least 1: got {width}")
        if num_negatives < 1:
            raise ValueError(f"`num_negatives` must be at least 1: got {num_negatives}")
        if decay < 0.0:
            raise ValueError(f"`decay` must not be negative: got {decay}")
        names = ("cell_head", "cell_tail", "hidden_head", "hidden_tail", "embedding")
        self.tables = dict.fromkeys(names, width)
        self.fill = {"embedding": "normal"}
        self.reads = Reads(ends=names, scored=("embedding",), neighborhood="recent", k=k)
        self.num_negatives = num_negatives
        self.decay = decay
        self.interact = nn.Linear(2 * width, 2 * width)
        self.cells = TimeLSTM(width, len(ROLES))
        self.merge = nn.Linear(2 * width, width)
        self.attention = nn.Linear(width, width, bias=False)  # a softmax does not see a bias
        # for each end, what it tells its heads and what it tells its tails
        self.transfer_src = nn.Linear(width, 2 * width)
        self.transfer_dst = nn.Linear(width, 2 * width)
        self.as_head = nn.Linear(width, width, bias=False)
        self.as_tail = nn.Linear(width, width, bias=False)

    def fade(self, gap: Tensor) -> Tensor:
        """g (...) of gaps (...) in seconds."""
        return 1.0 / torch.log(math.e + gap * (self.decay / HOUR))

    def encode(self, events: Events) -> dict[str, Tensor]:
        """g of both ends, (n, 2)."""
        return {"decay": self.fade(events.gap).to(self.merge.weight.dtype)}

    def update(self, level: Level) -> Written:
        """Interact, update, merge and propagate, on all members of an event at once."""
        members = level.members
        assert members is not None
        states = members.states
        z = states["embedding"]
        n, _, width = z.shape
        # of both roles: (n, p, 2, width)
        cell = torch.stack([states["cell_head"], states["cell_tail"]], dim=2)
        hidden = torch.stack([states["hidden_head"], states["hidden_tail"]], dim=2)
        slots = members.ends.unsqueeze(-1).expand(n, 2, width)
        # interact
        told = torch.tanh(self.interact(z.gather(1, slots).flatten(1)))  # (n, 2 width)
        told_by = told.view(n, 2, width).transpose(0, 1)  # (2, n, width)
        # update: the source as head, the destination as tail
        is_end, reaches = self.places(level)
        role_slots = slots.unsqueeze(1)  # (n, 1, 2, width)
        after = self.cells(
            told_by,
            *(x.gather(1, role_slots)[:, 0].transpose(0, 1) for x in (cell, hidden)),
            level.encoded["decay"].t().unsqueeze(-1),
        )
        new_cell, new_hidden = (x.transpose(0, 1).unsqueeze(1) for x in after)
        cell = torch.where(is_end, new_cell, cell)
        hidden = torch.where(is_end, new_hidden, hidden)
        z = torch.where(is_end.any(2), self.merged(hidden), z)
        # propagate
        for end, transfer in enumerate((self.transfer_src, self.transfer_dst)):
            if not reaches[end]:
                continue
            news = transfer(told_by[end]).view(n, 1, 2, width)
            for reach in reaches[end]:
                own = self.attention(z.gather(1, slots[:, end : end + 1]))  # (n, 1, width)
                score = torch.bmm(z, own.transpose(1, 2)) + reach.hides  # (n, p, 1)
                share = score.softmax(1) * reach.fade  # (n, p, 2)
                cell = torch.addcmul(cell, share.unsqueeze(-1), news)
                hidden = torch.where(reach.roles, torch.tanh(cell), hidden)
                z = torch.where(reach.members, self.merged(hidden), z)
        return Written(dict(zip(self.tables, (*cell.unbind(2), *hidden.unbind(2), z), strict=True)))

    @property
    def scans(self) -> bool:
        """For every width and neighbourhood."""
        return True

    def scan(self, chain: Chain) -> Scanned:
        """The same, event after event."""
        return Scanned(scan_dygnn(self, chain))

    def merged(self, hidden: Tensor) -> Tensor:
        """Representations (n, p, width) of hidden states (n, p, 2, width)."""
        return torch.tanh(self.merge(hidden.flatten(2)))

    @torch.no_grad()
    def places(self, level: Level) -> tuple[Tensor, list[list[Reach]]]:
        """Where each end takes its role, (n, p, 2, 1) bool, and whom it then reaches.

        Of several events of a pair in one direction the last counts.  An end that reaches nobody in
        a role, in the whole level, is left out.
        """
        near, members = level.near, level.members
        assert near is not None and members is not None
        n, p = members.mask.shape
        device, dtype = members.mask.device, self.merge.weight.dtype
        slots = torch.arange(p, device=device)[:, None, None]
        is_end = slots == members.ends[:, None, :, None]  # (n, p, 2, 1)
        fade = self.fade(near.gap).masked_fill(~level.mask, 0.0).to(dtype)
        at = 2 * members.neighbors + near.is_src  # whom the end was source to is a tail
        found = fade.new_zeros(n, 2, 2 * p).scatter_reduce_(2, at, fade, "amax")
        # whom a self loop met is both
        met_itself = members.neighbors == members.ends.unsqueeze(-1)
        found.scatter_reduce_(2, at ^ 1, fade * met_itself, "amax")
        found = found.view(n, 2, p, 2).transpose(0, 1)  # (end, n, p, role)
        each_role = torch.eye(2, dtype=dtype, device=device)[:, None, None]
        by_role = found.unsqueeze(1) * each_role  # (end, role, n, p, 2)
        roles = by_role > 0
        reached = roles.any(-1, keepdim=True)  # (end, role, n, p, 1)
        hides = torch.where(reached, 0.0, -1e30).to(dtype)
        any_reached = reached.flatten(2).any(2).tolist()
        return is_end, [
            [
                Reach(by_role[end, r], roles[end, r].unsqueeze(-1), reached[end, r], hides[end, r])
                for r in range(2)
                if any_reached[end][r]
            ]
            for end in range(2)
        ]

    def loss(
        self, events: Events, src: Nodes, dst: Nodes, other_src: Nodes, other_dst: Nodes
    ) -> Tensor:
        """Mean binary cross-entropy of the event's pair and of the corrupted ones, (n,)."""
        loss = F.softplus(-self.score(events, src, dst)).squeeze(1)
        count = torch.ones_like(loss)
        for wrong, others in (
            (self.score(events, src, other_dst), other_dst),
            (self.score(events, other_src, dst), other_src),
        ):
            loss = loss + torch.where(others.valid, F.softplus(wrong), 0.0).sum(1)
            count = count + others.valid.sum(1)
        return loss / count

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        """The logit of each pair, (n, m); only the side with fewer nodes is multiplied out."""
        head, tail = src.states["embedding"], dst.states["embedding"]
        if head.shape[1] <= tail.shape[1]:
            head = product(product(head, self.as_head.weight), self.as_tail.weight.t())
        else:
            tail = product(product(tail, self.as_tail.weight), self.as_head.weight.t())
        return (head * tail).sum(-1)
