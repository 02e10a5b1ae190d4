"""`check_model` passes models that obey the API, and names every planted fault and its cure."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neutronstream.models import (
    MODELS,
    DynamicGNN,
    DyRep,
    Events,
    Level,
    Nodes,
    Reads,
    Written,
    build,
)
from neutronstream.parallel import CheckReport, check_model
from neutronstream.parallel.checks.battery import Battery
from neutronstream.stream import EventLog, ModelError

from ..data import real_log
from ..models.small import Counter, GruMemory, RecentMean


class Sound(DynamicGNN):
    """A model without a fault, from which each of the others differs by one."""

    tables: Mapping[str, int] = MappingProxyType({"memory": 4, "age": 1})
    fill: Mapping[str, Literal["zeros", "normal"]] = MappingProxyType({"memory": "normal"})
    reads = Reads(
        ends=("memory", "age"),
        neighbors=("memory",),
        scored=("memory",),
        around=("memory",),
        neighborhood="recent",
        k=3,
    )
    num_negatives = 2

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(9, 4)
        self.query = nn.Linear(8, 4)

    def encode(self, events: Events) -> dict[str, Tensor]:
        return {"gap": torch.log1p(events.gap).to(self.query.weight.dtype).unsqueeze(-1)}

    def near(self, level: Level) -> Tensor:
        near = level.neighbors["memory"].masked_fill(~level.mask.unsqueeze(-1), 0.0).sum(2)
        return near / level.mask.sum(2).clamp(min=1).unsqueeze(-1)  # (n, 2, 4)

    def after(self, level: Level) -> Tensor:
        memory = level.ends["memory"]
        message = torch.cat([memory.flip(1), self.near(level), level.encoded["gap"]], dim=-1)
        after: Tensor = self.cell(message.flatten(0, 1), memory.flatten(0, 1))
        return after.view_as(memory)

    def update(self, level: Level) -> Written:
        return Written({"memory": self.after(level), "age": level.ends["age"] + 1})

    def embed(self, events: Events, nodes: Nodes) -> Tensor:
        around = nodes.around
        assert around is not None
        past = around.states["memory"].masked_fill(~around.mask.unsqueeze(-1), 0.0).sum(2)
        both = torch.cat([nodes.states["memory"], past], dim=-1)
        embedding: Tensor = torch.tanh(self.query(both))
        return embedding

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return (src.embedding * dst.embedding).sum(-1)


class Crowd(DynamicGNN):
    """Writes the ends and their neighbours."""

    tables: Mapping[str, int] = MappingProxyType({"memory": 3})
    fill: Mapping[str, Literal["zeros", "normal"]] = MappingProxyType({"memory": "normal"})
    reads = Reads(ends=("memory",), scored=("memory",), neighborhood="recent", k=2)
    writes = "neighbors"

    def __init__(self) -> None:
        super().__init__()
        self.told = nn.Linear(3, 3)

    def near(self, level: Level) -> Tensor:
        members, near = level.members, level.near
        assert members is not None and near is not None
        memory, n = members.states["memory"], len(level.kind)
        every = memory.gather(1, members.neighbors.view(n, -1, 1).expand(-1, -1, 3))
        faded = level.mask / (1 + torch.log1p(near.gap) + near.is_src)  # (n, 2, k)
        return (every * faded.view(n, -1, 1).to(memory.dtype)).sum(1, keepdim=True)

    def update(self, level: Level) -> Written:
        assert level.members is not None
        memory = level.members.states["memory"]
        return Written({"memory": torch.tanh(memory + self.told(self.near(level)))})

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return (src.embedding * dst.embedding).sum(-1)


class Draws(DynamicGNN):
    """Reads nodes and numbers that are drawn, and pays for what it writes."""

    tables: Mapping[str, int] = MappingProxyType({"memory": 3})
    fill: Mapping[str, Literal["zeros", "normal"]] = MappingProxyType({"memory": "normal"})
    reads = Reads(ends=("memory",), scored=("memory",), sampled=("memory",), num_sampled=4, noise=2)

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 3)

    def drawn(self, level: Level) -> Tensor:
        assert level.sampled_mask is not None
        mask = level.sampled_mask.unsqueeze(-1)
        return level.sampled["memory"].masked_fill(~mask, 0.0).sum(1, keepdim=True)

    def update(self, level: Level) -> Written:
        assert level.noise is not None
        told = self.mix(self.drawn(level) + level.ends["memory"].flip(1))
        told = told * level.noise.to(told.dtype).unsqueeze(-1)
        penalty = told.square().sum((1, 2))
        return Written({"memory": torch.tanh(level.ends["memory"] + told)}, penalty=penalty)

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return (src.embedding * dst.embedding).sum(-1)


def why(model: DynamicGNN | Callable[..., DynamicGNN], log: EventLog | None = None) -> str:
    """What `check_model` says of a model with a fault."""
    with pytest.raises(ModelError) as caught:
        check_model(model, log)
    return str(caught.value)


@pytest.fixture(scope="module")
def sound() -> CheckReport:
    """The report on a model without a fault."""
    return check_model(Sound)


def test_the_report_has_a_line_for_each_check(sound: CheckReport) -> None:
    first, *lines = str(sound).splitlines()
    assert first == f"Sound passes {len(sound.checks)} checks:"
    assert [line.split("  ")[1] for line in lines] == [check.name for check in sound.checks]
    assert {check.name for check in sound.checks} >= {
        *("methods", "pure", "rows", "exact", "no leak", "gradients", "resumed", "stale")
    }
    assert all(check.detail and not check.findings for check in sound.checks)


def test_it_takes_seconds(sound: CheckReport) -> None:
    assert 0 < sound.seconds < 60  # about 2 where nothing else runs


@pytest.mark.parametrize("model", [Crowd, Draws, GruMemory, RecentMean, Counter])
def test_a_sound_model_passes(model: type[DynamicGNN]) -> None:
    assert f"{model.__name__} passes" in str(check_model(model))


BOX: dict[str, list[dict[str, Any]]] = {
    "dygnn": [{}],
    "dyrep": [{"intensity": "linear"}, {}],
    "jodie": [{}, {"decoder": "distance"}],
    "ldg": [{"num_sampled": 5}],
    "tgn": [{}, {"embedding": "sum", "aggregation": "mean"}, {"embedding": "time"}],
}
"""Every model in the box, with options that make another model of it."""


def test_every_model_in_the_box_is_tried() -> None:
    assert set(BOX) == set(MODELS)


@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name in BOX for options in BOX[name]]
)
def test_a_model_in_the_box_passes(name: str, options: dict[str, Any]) -> None:
    def new_model(kinds: tuple[str, ...], num_features: int) -> DynamicGNN:
        return build(name, width=4, kinds=kinds, num_features=num_features, options=options)

    check_model(new_model)


def test_a_model_that_was_made_is_tried_on_its_log() -> None:
    log = real_log("social_evolution", 100)
    model = DyRep(5, log.kinds)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert check_model(model, log).model == "DyRep"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.psi.dtype == torch.float32  # it was left as it is


def check_needed(model: Callable[..., DynamicGNN], log: EventLog | None) -> None:
    """The checks without which no other can be."""
    battery = Battery(model, log, torch.float64, ("levels", "sequential"), ("cpu",))
    assert not any(check.findings for check in battery.checks(()))


def test_a_model_is_tried_on_logs_like_its_own() -> None:
    seen: set[tuple[int, ...]] = set()

    class Wide(Sound):
        def __init__(self, kinds: tuple[str, ...], num_features: int) -> None:
            super().__init__()
            self.kinds = nn.Embedding(len(kinds), 1)
            self.features = nn.Linear(num_features, 1)

        def encode(self, events: Events) -> dict[str, Tensor]:
            assert events.features is not None and events.weight is not None
            seen.update((int(k), events.features.shape[1]) for k in events.kind)
            known = self.features(events.features) + self.kinds(events.kind)
            known = known * events.weight.unsqueeze(-1)
            return {"gap": super().encode(events)["gap"] + known.unsqueeze(1)}

    rng = np.random.default_rng(0)
    log = EventLog.from_arrays(
        *(rng.integers(0, 9, 30), rng.integers(0, 9, 30), np.arange(30)),
        kind=["a", "b", "c"] * 10,
        weight=rng.random(30),
        features=rng.random((30, 7)).astype(np.float32),
    )
    check_needed(Wide, log)
    assert seen == {(kind, 7) for kind in range(3)}
    seen.clear()
    check_needed(Wide, None)
    assert seen == {(kind, 4) for kind in range(2)}


def test_the_error_has_a_line_for_each_finding() -> None:
    class Twice(Sound):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Linear(2, 2)

        def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
            return super().score(events, src, dst) - dst.embedding.mean((0, 2))

    said = why(Twice).splitlines()
    assert said[0].startswith("Twice fails ")
    assert any("`spare.weight` never gets a gradient" in line for line in said)
    assert any("`score` mixes the events" in line for line in said)


def test_other_devices_are_tried() -> None:
    report = check_model(Draws, devices=("cpu", "cpu:0"))
    assert "the same on cpu:0" in str(report)


def test_a_layer_of_torch_geometric_is_known_to_pytorch_and_keeps_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own age, when imported
        geometric = importlib.import_module("torch_geometric.nn")

    class Geometric(Sound):
        def __init__(self) -> None:
            super().__init__()
            self.conv = geometric.SAGEConv(4, 4)

        def embed(self, events: Events, nodes: Nodes) -> Tensor:
            around = nodes.around
            assert around is not None
            n, m, k = around.mask.shape
            own = nodes.states["memory"].reshape(n * m, 4)
            near = around.states["memory"].reshape(n * m * k, 4)
            edges = torch.stack([torch.arange(n * m * k), torch.arange(n * m).repeat_interleave(k)])
            seen: Tensor = self.conv((near, own), edges[:, around.mask.reshape(-1)])
            both = torch.cat([nodes.states["memory"], seen.view(n, m, 4)], dim=-1)
            embedding: Tensor = self.query(both)
            return embedding

    check_model(Geometric)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"`dtype` must be torch\.float64 or torch\.float32"):
        check_model(Sound, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"`executors` must be of .*: got 'batch'"):
        check_model(Sound, executors=("batch",))
    with pytest.raises(ValueError, match="`log` holds no event"):
        check_model(Sound, EventLog.from_arrays([], [], []))


FAULTS: dict[str, tuple[type[DynamicGNN], str, str]] = {}
"""Classes with a fault, the check that finds it, and what must be said of it."""


def fault(check: str, says: str) -> Callable[[type[DynamicGNN]], type[DynamicGNN]]:
    """Plants a class of which `check` must say `says`."""

    def plant(model: type[DynamicGNN]) -> type[DynamicGNN]:
        FAULTS[model.__name__] = model, check, says
        return model

    return plant


@fault("rows", "`embed` mixes the events of a level or segment")
class MixesEvents(Sound):
    def embed(self, events: Events, nodes: Nodes) -> Tensor:
        x = super().embed(events, nodes)
        return x - x.mean(0) if len(x) else x


@fault("no leak", "leaving out what comes after event")
class MixesGaps(Sound):
    def encode(self, events: Events) -> dict[str, Tensor]:
        gap = super().encode(events)["gap"]
        return {"gap": gap / gap.amax().clamp(min=1e-3) if len(gap) else gap}


@fault("rows", "`update` mixes the events of a level or segment")
class NormalisesLevels(Sound):
    def after(self, level: Level) -> Tensor:
        after = super().after(level)
        return after - after.mean((0, 1))


@fault("rows", "`score` mixes the nodes beside an event")
class NormalisesCandidates(Sound):
    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return torch.log_softmax(super().score(events, src, dst), 1) + 1


@fault("pure", "`encode` changes `self.last`")
class Stashes(Sound):
    def encode(self, events: Events) -> dict[str, Tensor]:
        self.last = events.gap[-1:, 1]
        return super().encode(events)

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        hint = (dst.gap - self.last[:1]).abs() < 1e-9
        return super().score(events, src, dst) + hint


@fault(
    "no leak",
    r"leaving out what comes after event .* changes the (loss|score.*) at event .* must not know",
)
class StashesWhatComes(Stashes):
    pass


@fault("pure", "`update` changes `self.seen`")
class RemembersEvents(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def update(self, level: Level) -> Written:
        self.seen += level.kind.tolist()
        return super().update(level)


@fault("pure", "`loss` changes `self.mean`")
class RunningMean(Sound):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def loss(self, *given: Any) -> Tensor:
        loss = super().loss(*given)
        if len(loss):
            self.mean.mul_(0.9).add_(loss.detach().mean(), alpha=0.1)
        return loss - self.mean


@fault("pure", "a second run of the same model gives other")
class CountsOutside(Sound):
    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        COUNTED.append(0)
        return super().score(events, src, dst) + 1e-3 * len(COUNTED)


COUNTED: list[int] = []


@fault("no leak", "changing the destination of event .* changes the score of a candidate at event")
class KnowsTheAnswer(Sound):
    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        right = (dst.gap - events.gap[:, 1:]).abs() < 1e-9
        return super().score(events, src, dst) + right


@fault("no leak", "changing the weight of event .* changes the score")
class ScoresByWeight(Sound):
    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        assert events.weight is not None
        return super().score(events, src, dst) * events.weight[:, None]


@fault("rows", "`expected_idle` depends on when the event happens")
class KnowsWhen(Sound):
    def expected_idle(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return torch.minimum(src.idle, dst.idle).squeeze(1)


@fault(
    "registered", r"`layers\[0\]` is a Linear kept where PyTorch does not look: its 2 parameters"
)
class ListOfLayers(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]


@fault("registered", r"`heads\['a'\]` is a Sequential kept where PyTorch does not look")
class DictOfLayers(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.heads = {"a": nn.Sequential(nn.Linear(4, 4))}


@fault("registered", "`head, layer` is a Linear kept where PyTorch does not look")
class LayerInAClosure(Sound):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(4, 4)
        self.head = lambda x: layer(x)


@fault("registered", "`scale` asks for a gradient, but is not in `parameters")
class TensorWithGradient(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(1, requires_grad=True)


@fault("registered", r"`query\.scale` is a plain tensor.*`register_buffer\('scale'")
class PlainTensor(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.query.scale = torch.ones(1)


@fault("registered", "`normal` was computed from parameters beforehand")
class ComputedBeforehand(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.normal = F.normalize(self.query.weight)


@fault("gradients", r"a tensor of shape \(4,\) gets a gradient, but is not in `parameters")
class ParameterOutside(Sound):
    def embed(self, events: Events, nodes: Nodes) -> Tensor:
        return super().embed(events, nodes) * OUTSIDE


OUTSIDE = torch.ones(4, dtype=torch.float64, requires_grad=True)


@fault("methods", r"`update` writes 'extra', which is not in `tables` \('memory', 'age'\)")
class WritesMore(Sound):
    def update(self, level: Level) -> Written:
        states = super().update(level).states
        return Written({**states, "extra": states["age"]})


@fault("methods", r"`update` writes 'seen' of links, which is not in `link_tables`")
class WritesLinks(Sound):
    def update(self, level: Level) -> Written:
        return Written(super().update(level).states, {"seen": level.mask.to(torch.float64)})


@fault("methods", r"`update` leaves out 'age' of `tables`")
class WritesLess(Sound):
    def update(self, level: Level) -> Written:
        return Written({"memory": self.after(level)})


@fault("methods", r"`derive` leaves out 'key' of `derived`")
class DerivesNothing(Sound):
    derived: Mapping[str, int] = MappingProxyType({"key": 2})


@fault("pure", r"`update` changes `level\.ends\['age'\]` in place \(event 0 of the log of")
class UpdatesInPlace(Sound):
    def update(self, level: Level) -> Written:
        level.ends["age"].add_(1)
        return Written({"memory": self.after(level), "age": level.ends["age"]})


@fault("pure", r"`encode` changes `events\.gap` in place")
class EncodesInPlace(Sound):
    def encode(self, events: Events) -> dict[str, Tensor]:
        return {"gap": events.gap.log1p_().to(self.query.weight.dtype).unsqueeze(-1)}


@fault("pure", r"`score` changes `dst\.valid` in place")
class MasksInPlace(Sound):
    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        dst.valid.logical_and_(dst.valid)
        return super().score(events, src, dst)


@fault("pure", r"`update` changes `self\.query\.bias`")
class WritesWeights(Sound):
    def update(self, level: Level) -> Written:
        with torch.no_grad():
            self.query.bias.mul_(0.5)
        return super().update(level)


@fault(
    "methods", r"`update` returns `states\['memory'\]` of shape \(2, 4\) .*: it must be \(1, 2, 4\)"
)
class WrongShape(Sound):
    def update(self, level: Level) -> Written:
        states = super().update(level).states
        return Written({"memory": states["memory"].flatten(0, 1), "age": states["age"]})


@fault(
    "methods", r"`loss` returns its result of shape \(\) .*: it must be \(.*\), one loss an event"
)
class OneLoss(Sound):
    def loss(self, *given: Any) -> Tensor:
        return super().loss(*given).mean()


@fault(
    "methods", r"`score` returns its result of shape .*: it must be .*, one score for each of `dst`"
)
class KeepsTheLastDimension(Sound):
    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return (src.embedding * dst.embedding).sum(-1, keepdim=True)


@fault("methods", "`update` returns dict .*: return Written")
class ReturnsADictionary(Sound):
    def update(self, level: Level) -> Written:
        return super().update(level).states  # type: ignore[return-value]


@fault("methods", r"`encode` gives -?inf in `\['gap'\]` at \[0, 0, 0\] \(event 0 of the log of")
class LogOfZero(Sound):
    def encode(self, events: Events) -> dict[str, Tensor]:
        return {"gap": torch.log(events.gap).to(self.query.weight.dtype).unsqueeze(-1)}


@fault("gradients", r"the gradient of `query\..*` is not finite")
class RootOfZero(Sound):
    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return -(src.embedding - dst.embedding).square().sum(-1).sqrt()


@fault(
    "methods",
    r"`encode` raised RuntimeError: .*dtype.*, line \d+ of .*test_check_model.*`\.float\(\)`",
)
class Casts(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(1, 1)

    def encode(self, events: Events) -> dict[str, Tensor]:
        return {"gap": self.time(events.gap.float().log1p()[..., None])}


@fault("methods", r"`loss` returns its result as torch\.float32 in a run with torch\.float64")
class AlwaysSingle(Sound):
    def loss(self, *given: Any) -> Tensor:
        return super().loss(*given).float()


@fault("dtypes", r"`score` returns its result as torch\.float64 in a run with torch\.float32")
class AlwaysDouble(Sound):
    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return super().score(events, src, dst) - dst.idle / 100


@fault("gradients", "`spare` never gets a gradient: no loss depends on it")
class DeadParameter(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))


@fault("gradients", r"`key\.bias` never gets a gradient: .* before a softmax")
class UselessBias(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(4, 4)

    def near(self, level: Level) -> Tensor:
        rate = (self.key(level.neighbors["memory"]) * level.ends["memory"].unsqueeze(2)).sum(-1)
        share = torch.softmax(rate.masked_fill(~level.mask, -1e9), dim=2) * level.mask
        return (share.unsqueeze(-1) * level.neighbors["memory"]).sum(2)


@fault("gradients", r"`query\.bias` gets a gradient but does not move: `constrain` puts it back")
class PutsBack(Sound):
    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.query.bias)

    def constrain(self) -> None:
        nn.init.zeros_(self.query.bias)


@fault("rows", "`update` reads padding: .* with other values where `mask` or `valid` is False")
class MeanWithPadding(Sound):
    def near(self, level: Level) -> Tensor:
        return level.neighbors["memory"].mean(2)


@fault("rows", "`embed` reads padding")
class EmbedsPadding(Sound):
    def embed(self, events: Events, nodes: Nodes) -> Tensor:
        assert nodes.around is not None
        return super().embed(events, nodes) + nodes.around.states["memory"].mean(2)


@fault("rows", "`loss` reads padding")
class LosesOnPadding(Sound):
    def loss(
        self, events: Events, src: Nodes, dst: Nodes, other_src: Nodes, other_dst: Nodes
    ) -> Tensor:
        return F.softplus(self.score(events, src, other_dst)).sum(1)


@fault("pure", "`score` changes `self.rng`")
class OwnGenerator(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return super().score(events, src, dst) + self.rng.random()


@fault("rows", "`update` reads padding")
class CountsPaddedMembers(Crowd):
    def near(self, level: Level) -> Tensor:
        assert level.members is not None
        return level.members.states["memory"].sum(1, keepdim=True)


@fault("rows", "`update` reads padding")
class CountsPaddedDraws(Draws):
    def drawn(self, level: Level) -> Tensor:
        return level.sampled["memory"].mean(1, keepdim=True)


@fault(
    "methods",
    r"`update` returns `states\['memory'\]` of shape \(1, 1, 3\) .*: it must be \(1, 2, 3\)",
)
class WritesEndsOnly(Crowd):
    def update(self, level: Level) -> Written:
        return Written({"memory": super().update(level).states["memory"][:, :1]})


@fault("methods", r"`update` returns `penalty` of shape \(\) .*: it must be \(1\)")
class OnePenalty(Draws):
    def update(self, level: Level) -> Written:
        return Written(super().update(level).states, penalty=level.ends["memory"].mean())


@fault("pure", "`score` draws random numbers from torch's generator .*; .*set dropout to 0")
class Drops(Sound):
    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return (F.dropout(src.embedding, 0.1) * dst.embedding).sum(-1)


@fault("methods", r"`update` raised KeyError: 'age', line .*\n?.*name it there")
class ReadsMoreThanItSays(Sound):
    def near(self, level: Level) -> Tensor:
        return super().near(level) + level.neighbors["age"].sum(2)


@fault("methods", "`update` raised AttributeError.*`link_tables`")
class AsksForLinks(Sound):
    def update(self, level: Level) -> Written:
        assert level.links.after is not None  # type: ignore[union-attr]
        return super().update(level)


@fault("resumed", "gives other .*: something that matters is neither in `state_dict")
class RandomConstant(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.first = float(torch.rand(()))

    def embed(self, events: Events, nodes: Nodes) -> Tensor:
        return super().embed(events, nodes) + self.first


@fault("methods", "`encode` raised IndexError: .*pass `check_model` the `log`")
class TooManyKinds(Sound):
    def __init__(self, kinds: tuple[str, ...]) -> None:
        super().__init__()
        self.kinds = nn.Embedding(1, 1)

    def encode(self, events: Events) -> dict[str, Tensor]:
        gap = super().encode(events)["gap"]
        return {"gap": gap + self.kinds(events.kind).unsqueeze(1)}


@fault("declared", "`tables` is not set")
class NoTables(DynamicGNN):
    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return dst.gap


@fault("declared", "must define `update`, or both `message` and `renew`")
class NoUpdate(DynamicGNN):
    tables: Mapping[str, int] = MappingProxyType({"memory": 4})
    reads = Reads(("memory",), scored=("memory",))

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return dst.embedding.sum(-1)


@fault("declared", "`fill` names 'memroy', which is not in `tables`")
class FillsNothing(Sound):
    fill: Mapping[str, Literal["zeros", "normal"]] = MappingProxyType({"memroy": "normal"})


@fault("declared", "making the model raised TypeError")
class NeedsAnArgument(Sound):
    def __init__(self, width: int) -> None:
        super().__init__()


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name: str) -> None:
    model, check, says = FAULTS[name]
    battery = Battery(model, None, torch.float64, ("levels", "sequential"), ("cpu",))
    *passed, found = battery.checks([check])
    assert not any(each.findings for each in passed)
    assert found.name == check
    assert any(re.search(says, finding) for finding in found.findings), found.findings
