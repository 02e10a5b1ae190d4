"""A dynamic GNN of one's own: a memory that meets its recent neighbours, checked and trained."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

import neutronstream as ns
from neutronstream.models import DynamicGNN, Events, Level, Nodes, Reads


class Recall(DynamicGNN):
    """Each end of an event takes the other's memory into its own by a GRU.

    A pair is scored by what both remember, and by whom the source has met of late.
    """

    num_negatives = 5

    def __init__(self, width: int = 32, k: int = 5) -> None:
        super().__init__()
        self.tables = {"memory": width}
        self.fill = {"memory": "normal"}
        self.reads = Reads(ends=("memory",), scored=("memory",), around=("memory",), k=k)
        self.cell = nn.GRUCell(width + 1, width)
        self.own, self.met = nn.Linear(width, width), nn.Linear(width, width)

    def encode(self, events: Events) -> dict[str, Tensor]:
        gap = torch.log1p(events.gap).to(self.own.weight.dtype)
        return {"gap": gap.unsqueeze(-1)}  # (n, 2, 1)

    def message(self, level: Level) -> Tensor:
        other = level.ends["memory"].flip(1)  # (n, 2, width)
        return torch.cat([other, level.encoded["gap"]], dim=-1)

    def renew(self, states: Mapping[str, Tensor], message: Tensor) -> dict[str, Tensor]:
        return {"memory": self.cell(message, states["memory"])}

    def embed(self, events: Events, nodes: Nodes) -> Tensor:
        assert nodes.around is not None
        mask = nodes.around.mask.unsqueeze(-1)  # (n, m, k, 1)
        met = nodes.around.states["memory"].masked_fill(~mask, 0.0).sum(2)
        met = met / mask.sum(2).clamp(min=1)  # (n, m, width)
        return torch.cat([nodes.states["memory"], met], dim=-1)

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        own, met = src.embedding.chunk(2, dim=-1)  # (n, 1, width)
        wanted: Tensor = self.own(own) + self.met(met)
        return (wanted * dst.embedding.chunk(2, dim=-1)[0]).sum(-1)  # (n, m)


print(ns.check_model(Recall))

log = ns.messages(2_000, seed=0)
config = ns.TrainConfig(size=200, stride=200, candidates=20)
report = ns.fit(log, config, model=Recall)
for window in report["windows"]:
    span = f"events {window['test_start']:4} to {window['stop'] - 1:4}"
    print(f"{span}  loss {window['train_loss']:.3f}  MRR {window['mrr']:.3f}")
for name, scores in report["metrics"].items():
    print(f"{name:16} MRR of the last half {scores['last_half']['mrr']:.3f}")
