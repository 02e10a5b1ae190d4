"""`check_model`: whether a model keeps what the executors promise, tried on small logs.

Exactness, no leak, checkpoints and gradients hold for every model that obeys the API; this is the
battery that says whether yours does and, where it does not, what to change.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...models import DynamicGNN
from ...stream import EventLog, ModelError
from ..segment import Consistency
from .attributes import unregistered
from .logs import KINDS, LENGTH, changes, like_nothing, trial_logs
from .methods import Broken, Watch, cure_of
from .rows import mixes, reads_padding
from .runs import EXACT, Asked, Predicted, Trial, backward, compare


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a report."""

    name: str
    detail: str  # what was tried
    findings: tuple[str, ...] = ()  # what is wrong, and what to change

    def __str__(self) -> str:
        return "\n".join(f"  {self.name:12} {text}" for text in self.findings or (self.detail,))


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check_model` tried, a line each."""

    model: str
    checks: tuple[Check, ...]
    seconds: float

    def __str__(self) -> str:
        wrong = [check for check in self.checks if check.findings]
        head = f"{self.model} passes {len(self.checks)} checks"
        if wrong:
            head = f"{self.model} fails {len(wrong)} of {len(self.checks)} checks"
        return "\n".join([f"{head}:", *map(str, wrong or self.checks)])


BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-6}  # of the largest entry, or of 1
SIZES = (LENGTH, 7)  # events of a segment
RATE = 1e-3  # how far a parameter moves in a step, at most
ONE_BY_ONE = ("one node, self loops", "late new nodes")  # watched event by event, too


def check_model(
    model: DynamicGNN | Callable[..., DynamicGNN],
    log: EventLog | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    executors: Sequence[str] = ("levels", "sequential"),
    devices: Sequence[str] | None = None,
) -> CheckReport:
    """A report of all that was tried on the model, if it passes.

    `model` is a class or a function that makes one (better: state that is not saved shows only in
    a second one), or a model.  What takes `kinds` or `num_features` is given those of the log.  It
    is tried on random logs of a few dozen events with the kinds, weights and features of `log`, and
    on the first events of that.  Most runs are in `dtype`, some in the other of float32 and
    float64.  `devices` are "cpu" and, if there is one, "cuda".

    Raises:
        ModelError: if anything is wrong, with a line for each finding: what, where, and the cure.
        ValueError: if an argument is unknown, or `log` holds no event.
    """
    if dtype not in BOUNDS:
        raise ValueError(f"`dtype` must be torch.float64 or torch.float32: got {dtype}")
    if unknown := [name for name in executors if name not in EXACT]:
        raise ValueError(f"`executors` must be of {sorted(EXACT)}: got {unknown[0]!r}")
    if log is not None and not len(log):
        raise ValueError("`log` holds no event: give one like those that the model is for")
    began = time.perf_counter()
    if devices is None:
        devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    battery = Battery(model, log, dtype, tuple(executors), tuple(devices))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small tensors gain nothing from more
    try:
        checks = tuple(battery.checks())
    finally:
        torch.set_num_threads(threads)
    report = CheckReport(battery.name, checks, time.perf_counter() - began)
    if any(check.findings for check in checks):
        raise ModelError(str(report)) from battery.cause
    return report


CALLS = {"loss": ("score",), "update": ("message", "renew")}
"""Methods that call others of the model."""


class Battery:
    """Everything that is tried on one model, check by check."""

    def __init__(
        self,
        source: DynamicGNN | Callable[..., DynamicGNN],
        log: EventLog | None,
        dtype: torch.dtype,
        executors: tuple[str, ...],
        devices: tuple[str, ...],
    ) -> None:
        self.source, self.dtype, self.executors, self.devices = source, dtype, executors, devices
        self.name = type(source).__name__ if isinstance(source, DynamicGNN) else _name_of(source)
        self.template = _template(source) if log is None else log
        self.logs = trial_logs(self.template)
        if log is not None:
            self.logs[log.name] = log.head(LENGTH)
        self.watch: Watch | None = None
        self.is_exact = True
        self.cause: Exception | None = None

    def checks(self, names: Sequence[str] | None = None) -> Iterator[Check]:
        """One check after the other; none after those without which the rest cannot be.

        Of the rest those in `names`, or all.
        """
        needed = [self.declared, self.registered, self.methods]
        rest = [self.pure, self.rows, self.exact, self.no_leak, self.gradients, self.resumed]
        rest += [self.edges, self.dtypes, self.moved, self.stale]
        for check in (*needed, *rest):
            name = check.__name__.replace("_", " ")
            if names is not None and check in rest and name not in names:
                continue
            findings: list[str] = []
            try:
                detail = check(findings)
            except Exception as error:  # whatever a model does must come out as a sentence
                self.cause = self.cause or error
                said = str(error)
                if not isinstance(error, Broken):
                    said = f"a run raised {type(error).__name__}: {error}{cure_of(error)}"
                detail, findings = "", [*findings, said]
            if detail or findings:
                yield Check(name, detail, tuple(findings))
            if findings and check in needed:
                return

    def new(self, dtype: torch.dtype, *, device: str = "cpu", seed: int = 0) -> DynamicGNN:
        """A model of its own, equal to every other one of the seed."""
        if isinstance(self.source, DynamicGNN):
            return copy.deepcopy(self.source).to(device, dtype)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return _make(self.source, self.template).to(device, dtype)

    def declared(self, findings: list[str]) -> str:
        """What the class says of itself."""
        try:
            model = self.source if isinstance(self.source, DynamicGNN) else self.new(self.dtype)
        except Exception as error:
            findings.append(f"making the model raised {type(error).__name__}: {error}")
            return ""
        if not isinstance(model, DynamicGNN):
            findings.append(f"{self.name} makes a {type(model).__name__}: it must be a DynamicGNN")
            return ""
        self.name = type(model).__name__
        for field in ("tables", "reads"):
            if not hasattr(model, field):
                findings.append(f"`{field}` is not set: set it on the class or in `__init__`")
        if findings:
            return ""
        for declared in (model.tables, model.derived):
            for table, width in declared.items():
                if not isinstance(width, int) or width < 1:
                    findings.append(f"the width of {table!r} must be an int from 1: got {width!r}")
        if twice := sorted(set(model.tables) & {*model.derived, *model.link_tables}):
            findings.append(f"{twice[0]!r} is declared twice: give each table a name of its own")
        if odd := sorted(set(model.fill) - set(model.tables)):
            findings.append(f"`fill` names {odd[0]!r}, which is not in `tables`")
        if not model.tables:
            findings.append("`tables` is empty: a model keeps at least one state for each node")
        if not model.reads.scored:
            findings.append("`reads.scored` is empty: name the tables that `score` and `loss` read")
        try:
            model.check()
        except ValueError as error:
            findings.append(str(error))
        tables = ", ".join(f"{table} ({width})" for table, width in model.tables.items())
        return f"keeps {tables}; reads {'; '.join(_reads(model))}; writes {model.writes}"

    def registered(self, findings: list[str]) -> str:
        """That PyTorch knows of every parameter, layer and constant."""
        model = self.source if isinstance(self.source, DynamicGNN) else self.new(self.dtype)
        findings += unregistered(model)
        return f"all of {sum(1 for _ in model.parameters())} parameters are known to PyTorch"

    def methods(self, findings: list[str]) -> str:
        """Shapes, names and number types of all that the methods return, and finite values."""
        self.watch = self.watched(self.dtype)
        findings += self.watch.bad_values.values()
        own = [name for name in self.watch.largest if _is_own(self.watch.model, name)]
        return f"{', '.join(own)}: names, shapes, number types, finite values"

    def watched(self, dtype: torch.dtype, device: str = "cpu") -> Watch:
        """A watch that has seen every log, event by event and as a whole."""
        model = self.new(dtype, device=device)
        watch = Watch(model, dtype, torch.device(device))
        with torch.no_grad():
            runs = [(name, 1) for name in ONE_BY_ONE] + [(name, LENGTH) for name in self.logs]
            for name, size in runs:
                log = self.logs[name]
                trial = Trial(model, log, "levels", dtype, device)
                for start, stop in trial.spans(size):
                    span = f"event {start}" if size == 1 else f"events {start} to {stop - 1}"
                    watch.where = f"{span} of the log of {name}"
                    trial.step(start, stop, candidates=3)
        return watch

    def pure(self, findings: list[str]) -> str:
        """That methods change nothing and that a second call gives the same."""
        assert self.watch is not None
        findings += self.watch.impure.values()
        model = self.new(self.dtype)
        with torch.no_grad():
            first, second = (self.trial(model, "random").run(SIZES[1]) for _ in range(2))
        for name, value in first.items():
            if not findings and not torch.equal(value, second[name]):
                findings.append(
                    f"a second run of the same model gives other {name}: it keeps something "
                    "outside of itself, or draws random numbers; a method may use only its "
                    "arguments, parameters and `level.noise`"
                )
        return "methods change nothing that they are given and keep nothing between calls"

    def rows(self, findings: list[str]) -> str:
        """That an event's results do not depend on the events beside it, nor on padding."""
        assert self.watch is not None
        if self.watch.impure:
            return "not tried: methods change what they are given, or keep something"
        with torch.no_grad():
            bound, plain = BOUNDS[self.dtype], self.watch.plain
            guilty: set[str] = set()
            calls = [(mixes, call) for call in self.watch.largest.values()]
            calls += [(reads_padding, call) for call in self.watch.padded.values()]
            # those that others call come first: one cause is told once
            for wrong, call in sorted(calls, key=lambda pair: pair[1].method in CALLS):
                if guilty.isdisjoint({call.method, *CALLS.get(call.method, ())}):
                    found = wrong(plain[call.method], call, bound)
                    findings += found
                    guilty |= {call.method} if found else set()
        return "an event gives the same alone and among others, whatever stands in padding"

    def trial(
        self, model: DynamicGNN, log: str, executor: str = "levels", dtype: Any = None
    ) -> Trial:
        """A run of the model from the start of one of the logs."""
        return Trial(model, self.logs[log], executor, dtype or self.dtype, "cpu")

    def exact(self, findings: list[str]) -> str:
        """That all executors and sizes of segments give the same."""
        worst = self.compare_executors(
            self.dtype,
            findings,
            "; one of the methods gives an event another result when it is run with others",
        )
        with torch.no_grad():
            whole, single = (
                self.trial(self.new(self.dtype), "random").run(size) for size in (LENGTH, 1)
            )
        where = "one segment of all events and segments of one event each, log of random"
        if not findings:
            findings += compare(whole, single, BOUNDS[self.dtype], where)[1]
        self.is_exact = not findings
        return (
            f"{' = '.join(self.executors)}: states, links, losses, scores and gradients "
            f"differ by {worst:.0e} at most"
        )

    def compare_executors(self, dtype: torch.dtype, findings: list[str], cure: str) -> float:
        """The greatest difference between executors, as a part of the largest entry."""
        worst = 0.0
        runs = [(name, LENGTH, 0.0) for name in self.logs]
        if dtype == self.dtype:
            runs.append(("random", SIZES[1], RATE))
        else:
            runs = [(name, LENGTH, 0.0) for name in ("random", *ONE_BY_ONE)]
        for name, size, rate in runs:
            done = []
            for executor in self.executors:
                with _explained(f"{executor} on the log of {name}"):
                    trial = self.trial(self.new(dtype), name, executor, dtype)
                    done.append(trial.run(size, rate=rate))
            for executor, other in zip(self.executors[1:], done[1:], strict=True):
                where = f"{self.executors[0]} and {executor}, {dtype}, log of {name}"
                bound = BOUNDS[dtype] * (1e3 if rate else 1.0)  # a model may magnify what differs
                difference, wrong = compare(done[0], other, bound, where)
                worst = max(worst, 0.0 if rate else difference)
                if wrong and not findings:  # one cause gives many differences
                    findings.append(wrong[0] + cure)
        return worst

    def no_leak(self, findings: list[str]) -> str:
        """That a change of an event changes nothing that was predicted at or before it."""
        log = self.logs["random"]
        rng = np.random.default_rng(7)
        known = np.maximum(log.nodes_before(np.arange(len(log))), 1)
        draws = [np.stack([rng.integers(0, k, 4) for k in known.tolist()]) for _ in range(2)]
        draws[0][:, 0] = log.events.src  # the event's own ends are asked for too
        draws[1][:, 0] = log.events.dst
        asked = Asked((draws[0], draws[1]), draws[1])

        def scores(changed: EventLog) -> Predicted:
            trial = Trial(self.new(self.dtype), changed, "levels", self.dtype, "cpu")
            return trial.predict(asked.head(len(changed)))

        seen: set[str] = set()
        with torch.no_grad():
            before = scores(log)
            for i in (len(log) // 5, len(log) // 2, len(log) - 2):
                for what, changed in changes(log, i):
                    bound = BOUNDS[self.dtype] * before.scale
                    leak = before.leak(scores(changed), i, what, bound)
                    if leak is not None and leak[0] not in seen:  # one cause shows in many places
                        seen.add(leak[0])
                        findings.append(leak[1])
        return "changing or cutting events changes no score or loss before"

    def gradients(self, findings: list[str]) -> str:
        """That every parameter gets a gradient and moves, and nothing else does."""
        findings += self.learn("exact")
        return "every parameter gets a gradient and moves"

    def learn(self, consistency: Consistency) -> list[str]:
        """What is wrong with the gradients of a few steps on two logs."""
        model = self.new(self.dtype)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        largest = dict.fromkeys(before, 0.0)  # gradient of each parameter
        findings: list[str] = []
        strange: dict[str, None] = {}
        for name in ("random", "initial links"):
            executor = "levels" if consistency == "exact" else "batch"
            trial = Trial(model, self.logs[name], executor, self.dtype, "cpu")
            for start, stop in trial.spans(SIZES[0] // 3):
                with _explained(f"learning from the log of {name}"):
                    outcome = trial.step(start, stop, candidates=None, rate=None)
                    strange |= dict.fromkeys(_leaves(outcome.losses, model))
                    backward(outcome.losses, model)
                for weight, parameter in model.named_parameters():
                    gradient = parameter.grad
                    if gradient is None or not parameter.requires_grad:
                        continue
                    if not torch.isfinite(gradient).all():
                        findings.append(
                            f"the gradient of `{weight}` is not finite (events {start} to "
                            f"{stop - 1} of the log of {name}): a root, logarithm or norm of 0, "
                            "or a maximum over no neighbours, has none"
                        )
                        return findings
                    largest[weight] = max(largest[weight], float(gradient.abs().max()))
                    with torch.no_grad():
                        parameter.sub_(gradient.sign(), alpha=0.003)
                model.constrain()
        findings += strange
        rounding = 4 * torch.finfo(self.dtype).eps * max(largest.values(), default=0.0)
        for weight, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if largest[weight] <= rounding:
                findings.append(
                    f"`{weight}` never gets a gradient: no loss depends on it (a bias "
                    "before a softmax or a norm adds the same to all); use it, remove it, or set "
                    "`requires_grad=False` if it is to stay as it is"
                )
            elif torch.equal(before[weight], parameter):
                findings.append(
                    f"`{weight}` gets a gradient but does not move: `constrain` puts it back"
                )
        return findings

    def resumed(self, findings: list[str]) -> str:
        """That a run goes on bit for bit from saved weights and states."""
        for consistency in ("exact", "batch") if self.stale_refusal() is None else ("exact",):
            executor = "levels" if consistency == "exact" else "batch"
            log, half, rate = self.logs["random"], LENGTH // 2, RATE
            trial = Trial(self.new(self.dtype), log, executor, self.dtype, "cpu")
            trial.run(SIZES[1], rate=rate, stop=half)
            weights = {k: v.clone() for k, v in trial.model.state_dict().items()}
            states = trial.replay.state.to_arrays()
            expected = trial.run(SIZES[1], rate=rate, start=half)
            other = Trial(self.new(self.dtype, seed=1), log, executor, self.dtype, "cpu")
            other.model.load_state_dict(weights)
            other.replay.apply(half)
            other.replay.state.from_arrays(states)
            for name, value in other.run(SIZES[1], rate=rate, start=half).items():
                if not findings and not torch.equal(value, expected[name]):
                    findings.append(
                        f"a run that goes on from saved weights and states gives other {name}: "
                        "something that matters is neither in `state_dict()` nor in `tables`; "
                        "make it a parameter, a buffer or a table"
                    )
        return "a run goes on bit for bit from saved weights and states"

    def edges(self, findings: list[str]) -> str:
        """Segments of no event and of one, in every executor."""
        tried = [*self.executors] + (["batch"] if self.stale_refusal() is None else [])
        for executor in tried:
            for start, stop in ((0, 0), (0, 1), (5, 5), (5, 6)):
                for candidates in (None, 3):
                    trial = self.trial(self.new(self.dtype), "random", executor)
                    what = f"{executor} on a segment of {stop - start} events"
                    with _explained(what):
                        outcome = trial.step(start, stop, candidates=candidates, rate=RATE)
                    if outcome.losses.shape != (stop - start,):
                        findings.append(f"{what} gives losses of shape {outcome.losses.shape}")
        return "segments of one event and of none; self loops, ties, late new nodes, initial links"

    def dtypes(self, findings: list[str]) -> str:
        """The same in the other number type."""
        other = torch.float32 if self.dtype == torch.float64 else torch.float64
        findings += self.watched(other).bad_values.values()
        if not self.is_exact:
            return "names and shapes; executors not compared, since they differ already"
        worst = self.compare_executors(
            other,
            findings,
            "; if it is only here, it is rounding, which `neutronstream.models.rows` takes out of "
            "linear layers",
        )
        return f"in {str(other).removeprefix('torch.')} executors differ by {worst:.0e} at most"

    def moved(self, findings: list[str]) -> str:
        """The same on other devices."""
        done = []
        for device in self.devices:
            if device == "cpu":
                continue
            self.watched(self.dtype, device)
            pairs = [("levels", executor) for executor in self.executors]
            if self.stale_refusal() is None:
                pairs.append(("batch", "batch"))
            for here, there in pairs:
                runs = []
                for executor, place in ((here, "cpu"), (there, device)):
                    trial = Trial(
                        *(self.new(self.dtype, device=place), self.logs["random"], executor),
                        *(self.dtype, place),
                    )
                    with _explained(f"the run of {executor!r} on {place}"):
                        runs.append(trial.run(LENGTH))
                bound = 100 * BOUNDS[self.dtype]  # other kernels round otherwise
                findings += compare(runs[0], runs[1], bound, f"cpu and {device} ({there})")[1]
            done.append(device)
        return f"the same on {', '.join(done)}" if done else ""

    def stale_refusal(self) -> str | None:
        """Why the model cannot be run in stale batches, if so."""
        try:
            Trial(self.new(self.dtype), self.logs["random"], "batch", self.dtype, "cpu")
        except ValueError as error:
            return str(error)
        return None

    def stale(self, findings: list[str]) -> str:
        """That stale batches run too, and reach every parameter."""
        refusal = self.stale_refusal()
        if refusal is not None:
            return f"not offered: {refusal}"
        findings += self.learn("batch")
        return 'with `consistency="batch"` too every parameter gets a gradient'


def _leaves(losses: Tensor, model: nn.Module) -> Iterator[str]:
    """Tensors without a name that the losses have a gradient of."""
    known = {id(parameter) for parameter in model.parameters()}
    seen, stack = set(), [losses.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf.numel() and id(leaf) not in known:
            yield (
                f"a tensor of shape {tuple(leaf.shape)} gets a gradient, but is not in "
                "`parameters()`, so it is neither learned nor saved: set it, or the layer that has "
                "it, as an attribute of the model"
            )
        stack += [following for following, _ in node.next_functions]


def _reads(model: DynamicGNN) -> Iterator[str]:
    """What a model reads, and of whom."""
    reads = model.reads
    near = "links" if reads.neighborhood == "links" else f"{reads.k} recent neighbours"
    for names, who in (
        (reads.ends, "both ends" if model.writes == "ends" else "both ends and neighbours"),
        (reads.neighbors, f"their {near}"),
        (reads.sampled, f"{reads.num_sampled} nodes drawn"),
        (reads.scored, "scored nodes"),
        (reads.around, f"their {reads.k} recent neighbours"),
    ):
        if names:
            yield f"{', '.join(names)} of {who}"


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turns any error of a run into one that says what was run."""
    try:
        yield
    except Broken:
        raise
    except Exception as error:
        raise Broken(f"{what} raised {type(error).__name__}: {error}{cure_of(error)}") from error


def _is_own(model: DynamicGNN, method: str) -> bool:
    return getattr(type(model), method) is not getattr(DynamicGNN, method)


def _name_of(source: Any) -> str:
    return getattr(source, "__name__", type(source).__name__)


def _arguments(source: Any) -> set[str]:
    try:
        return set(inspect.signature(source).parameters)
    except (TypeError, ValueError):
        return set()


def _template(source: Any) -> EventLog:
    """A log for a model that comes without one."""
    takes = set() if isinstance(source, DynamicGNN) else _arguments(source)
    return like_nothing(KINDS if "kinds" in takes else ("event",))


def _make(source: Callable[..., DynamicGNN], log: EventLog) -> DynamicGNN:
    """A model of what makes it, for the kinds and features of the log."""
    features = log.events.features
    fitting = {
        "kinds": log.kinds,
        "num_features": 0 if features is None else features.shape[1],
    }
    takes = _arguments(source)
    return source(**{name: value for name, value in fitting.items() if name in takes})
