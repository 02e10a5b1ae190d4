"""A dynamic GNN of one's own: a GRU memory, scored by an inner product, trained exactly."""

import torch
from torch import Tensor, nn

import neutronstream as ns
from neutronstream.models import DynamicGNN, Events, Level, Nodes, Reads, Written
from neutronstream.parallel import LevelExecutor, Replay


class GRUMemory(DynamicGNN):
    """Each end of an event takes the other's memory and the time that has passed into its own."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tables, self.derived = {"memory": width}, {}
        self.fill = {"memory": "normal"}
        self.reads = Reads(ends=("memory",), scored=("memory",))
        self.cell = nn.GRUCell(width + 1, width)
        self.query = nn.Linear(width, width)

    def encode(self, events: Events) -> dict[str, Tensor]:
        return {"gap": torch.log1p(events.gap).float()[..., None]}  # (n, 2, 1)

    def update(self, level: Level) -> Written:
        memory = level.ends["memory"]  # (n, 2, width)
        message = torch.cat([memory.flip(1), level.encoded["gap"]], dim=-1)
        new = self.cell(message.flatten(0, 1), memory.flatten(0, 1))
        return Written({"memory": new.view_as(memory)})

    def compare(self, src: Nodes, dst: Nodes) -> Tensor:
        query: Tensor = self.query(src.states["memory"])  # (n, 1, width)
        return (query * dst.states["memory"]).sum(-1)  # (n, m)

    def loss(
        self, events: Events, src: Nodes, dst: Nodes, other_src: Nodes, other_dst: Nodes
    ) -> Tensor:
        softplus = nn.functional.softplus
        wrong = softplus(self.compare(src, other_dst)) * other_dst.valid
        return softplus(-self.compare(src, dst)).squeeze(1) + wrong.mean(1)

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return self.compare(src, dst)


torch.manual_seed(0)
log = ns.messages(2_000, seed=0)
model = GRUMemory()
replay = Replay(log, model)
executor = LevelExecutor(replay)
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
for start in range(0, len(log), 100):
    segment = executor.prepare(replay.resolve(start, min(start + 100, len(log))))
    outcome = executor.run(segment)
    optimiser.zero_grad()
    outcome.losses.mean().backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    outcome.commit()
    if start % 500 == 0:
        print(f"events {start:5}  loss {float(outcome.losses.detach().mean()):.3f}")
