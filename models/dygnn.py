"""DyGNN: a time LSTM for each of two roles, whose news is propagated to recent neighbours.

Ma, Guo, Ren, Tang, Yin, "Streaming Graph Neural Networks", SIGIR 2020, sections 3.1 to 3.4.  The
invariant: an event writes its ends and their neighbours, and is scored from the states before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import DynamicGNN, Reads
from .views import Events, Level, Nodes, Written

HOUR = 3600.0
ROLES = ("head", "tail")  # of source and destination


class TimeLSTM(nn.Module):
    """LSTM cells whose short-term memory fades with time, one for each role, computed together.

    Of a cell c, a hidden state h, an input x and a decay g (section 3.1.2 of the paper):

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


class DyGNN(DynamicGNN):
    """DyGNN over the `k` most recent events of each end.

    A node has a cell c and a hidden state h for each of its roles, head (source) and tail
    (destination), and a representation z.  With g(dt) = 1 / ln(e + `decay` dt), dt in hours, an
    event from u to v makes of the states before it:

        interact   e_u = tanh(A_1 z_u + B_1 z_v + a_1),  e_v = tanh(A_2 z_u + B_2 z_v + a_2)
        update     (c^head_u, h^head_u) by `TimeLSTM` with e_u and g(time since u.s last event),
                   (c^tail_v, h^tail_v) with e_v and that of v
        merge      z_x = tanh(P h^head_x + Q h^tail_x + p) of both ends
        propagate  from u with e_u: first to its heads (nodes with an earlier event to u), then to
                   its tails (nodes to which u had an earlier event); then from v with e_v likewise.
                   For a neighbour n of x in a role: a_n = softmax over n of z_x^T M z_n, and

                   c^role_n += a_n g(dt_n) T_(x, role) e_x,  h^role_n = tanh(c^role_n),  z_n merged

    where dt_n is the time since the last event of that pair in that direction.  Each step sees what
    the one before it wrote.  The published code leaves tails unweighted by a slip; here both roles
    are.  The paper propagates to all neighbours met within a time threshold (unbounded in its
    code); here it is those of the last `k` events of each end, which bounds the cost of an event.

    The score of a pair is U z_u . V z_v; the loss of an event is the mean binary cross-entropy of
    its own pair and of those with a corrupted destination or source.  Self loops apply both roles
    to one node.  All five states of a new node are drawn from N(0, 1).
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
        self.fill = dict.fromkeys(names, "normal")
        self.derived = {"as_head": width, "as_tail": width}
        self.reads = Reads(ends=names, scored=("as_head", "as_tail"), neighborhood="recent", k=k)
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

    def derive(self, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The representation as a source and as a destination is scored."""
        z = states["embedding"]
        return {"as_head": self.as_head(z), "as_tail": self.as_tail(z)}

    def update(self, level: Level) -> Written:
        """Interact, update, merge and propagate, on all members of an event at once."""
        members = level.members
        assert members is not None
        states = members.states
        cell = [states["cell_head"], states["cell_tail"]]  # by role, each (n, p, width)
        hidden = [states["hidden_head"], states["hidden_tail"]]
        z = states["embedding"]
        n, p, width = z.shape
        slots = torch.arange(p, device=z.device)
        is_end = (members.ends[:, :, None] == slots).unsqueeze(-1)  # (n, 2, p, 1)
        fade = self.fade_of_neighbors(level)  # (n, 2, 2, p)
        at = members.ends[:, :, None].expand(n, 2, width)
        # interact
        news = torch.tanh(self.interact(z.gather(1, at).flatten(1)))  # (n, 2 width)
        by_end = news.view(n, 2, width).transpose(0, 1)  # (2, n, width)
        # update: the source as head, the destination as tail
        old_cell = torch.stack([c.gather(1, at[:, r : r + 1])[:, 0] for r, c in enumerate(cell)])
        old_hidden = torch.stack(
            [h.gather(1, at[:, r : r + 1])[:, 0] for r, h in enumerate(hidden)]
        )
        decay = level.encoded["decay"].t().unsqueeze(-1)  # (2, n, 1)
        new_cell, new_hidden = self.cells(by_end, old_cell, old_hidden, decay)
        for role in range(2):
            cell[role] = torch.where(is_end[:, role], new_cell[role, :, None], cell[role])
            hidden[role] = torch.where(is_end[:, role], new_hidden[role, :, None], hidden[role])
        merged = torch.tanh(self.merge(torch.cat(hidden, dim=-1)))
        z = torch.where(is_end.any(1), merged, z)
        # propagate
        for end, transfer in enumerate((self.transfer_src, self.transfer_dst)):
            told = transfer(by_end[end]).view(n, 2, 1, width)
            for role in range(2):
                near = fade[:, end, role]  # (n, p), 0 of what is no neighbour
                own = z.gather(1, at[:, end : end + 1])  # (n, 1, width)
                score = torch.bmm(self.attention(z), own.transpose(1, 2)).squeeze(2)  # (n, p)
                share = score.masked_fill(near == 0, -1e30).softmax(1) * near
                is_near = (near > 0).unsqueeze(-1)
                cell[role] = torch.addcmul(cell[role], share.unsqueeze(-1), told[:, role])
                hidden[role] = torch.where(is_near, torch.tanh(cell[role]), hidden[role])
                merged = torch.tanh(self.merge(torch.cat(hidden, dim=-1)))
                z = torch.where(is_near, merged, z)
        return Written(dict(zip(self.tables, (*cell, *hidden, z), strict=True)))

    @torch.no_grad()
    def fade_of_neighbors(self, level: Level) -> Tensor:
        """g(dt_n) of every member as a neighbour of each end in each role, (n, 2, 2, p).

        Of several events of a pair in one direction the last counts; 0 is no neighbour.
        """
        near, members = level.near, level.members
        assert near is not None and members is not None
        n, p = members.mask.shape
        fade = self.fade(near.gap).masked_fill(~level.mask, 0.0).to(self.merge.weight.dtype)
        # to whom the end was a source is a tail
        at = members.neighbors + near.is_src * p  # (n, 2, k)
        found = fade.new_zeros(n, 2, 2 * p)
        return found.scatter_reduce_(2, at, fade, "amax").view(n, 2, 2, p)

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
        """The logit of each pair, (n, m)."""
        return (src.states["as_head"] * dst.states["as_tail"]).sum(-1)
