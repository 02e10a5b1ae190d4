"""Dynamic node labels: does the state of an event's source change at this event?

The model learned from links alone and is frozen; a classifier reads the source's embedding from the
states before the event, as in JODIE (Kumar et al., KDD 2019), TGN (Rossi et al., 2020) and DyGLib
(Yu et al., NeurIPS 2023).  Invariant: the labels of the train part fit the classifier, those of
validation choose its regularisation, those of the test part choose nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from rich.console import Console
from rich.text import Text
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from ..models import DynamicGNN
from ..storage import has_checkpoint, read_checkpoint, write_whole
from ..stream import Bool, CheckpointError, EventLog, Float64
from . import runs
from .config import TrainConfig
from .fit import fit
from .keeper import below
from .learn import make_executor, make_model, threads_of
from .report import to_json, to_plain
from .split import split_log
from .summary import versions
from .tables import ruled, score_text
from .trainer import segments

Progress: TypeAlias = Callable[[dict[str, Any]], None]

CLASSIFIERS = ("logistic", "mlp")
STRENGTHS = (1.0, 0.1, 0.01, 0.001)  # of the logistic regression: the inverse of its penalty
HIDDEN = (80, 10)  # of the MLP, as in the decoders of TGN and DyGLib


def score_labels(
    labels: Bool,
    features: Mapping[str, Float64],
    parts: Mapping[str, slice],
    *,
    classifier: str = "logistic",
    seed: int = 0,
) -> dict[str, dict[str, float | None]]:
    """ROC AUC of a classifier on each of `features` (n, f), on the parts `val` and `test`.

    `labels` (n,) are those of the events, `parts` names the spans `train`, `val` and `test`.  An
    AUC is None where a part holds one class only.  `strength` is the one of `STRENGTHS` that was
    best on `val`; None for the MLP, which has no choice.

    Raises:
        ValueError: if the train part holds one class only: there is nothing to fit.
    """
    truth = labels[parts["train"]]
    check_classes(truth)
    found: dict[str, dict[str, float | None]] = {}
    for name, columns in features.items():
        table = StandardScaler().fit(columns[parts["train"]]).transform(columns)
        best: dict[str, float | None] = {}
        for strength in STRENGTHS if classifier == "logistic" else (None,):
            guess = _fitted(classifier, strength, table[parts["train"]], truth, seed)(table)
            scores: dict[str, float | None] = {
                part: _auc(labels[parts[part]], guess[parts[part]]) for part in ("val", "test")
            }
            if not best or (scores["val"] or 0.0) > (best["val"] or 0.0):
                best = scores | {"strength": strength}
        found[name] = best
    return found


def check_classes(truth: Bool) -> None:
    """Refuses a train part (n,) that holds one class only.

    Raises:
        ValueError: saying how many events have label 1.
    """
    if truth.all() or not truth.any():
        raise ValueError(
            "the train part must hold events with label 1 and events with label 0: "
            f"got {int(truth.sum())} of {len(truth)} with label 1"
        )


def _fitted(
    classifier: str, strength: float | None, table: Float64, truth: Bool, seed: int
) -> Callable[[Float64], Float64]:
    """The score (n,) of label 1 by a classifier that is fitted to (table, truth)."""
    if classifier == "logistic":
        fitted: Any = LogisticRegression(C=strength, class_weight="balanced", max_iter=1_000)
    else:
        fitted = MLPClassifier(HIDDEN, random_state=seed, max_iter=50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a bound on the time, not a fault
        fitted.fit(table, truth)
    return lambda rows: np.asarray(fitted.predict_proba(rows)[:, 1])


def _auc(truth: Bool, guess: Float64) -> float | None:
    if truth.all() or not truth.any():
        return None
    return float(roc_auc_score(truth, guess))


def read_labels(log: EventLog) -> Bool:
    """The labels (n,) of the events of `log`.

    Raises:
        ValueError: if it has none, or others than 0 and 1.
    """
    label = log.events.label
    if label is None:
        raise ValueError(
            f"{log.name} has no column `label` that holds numbers for all events: label prediction "
            "needs one of 0 and 1, as in wikipedia and mooc"
        )
    odd = label[(label != 0) & (label != 1)]
    if len(odd):
        raise ValueError(f"labels must be 0 or 1: got {odd[0]}")
    return label.astype(np.bool_)


def trivial_features(log: EventLog) -> dict[str, Float64]:
    """What needs no model, each (n, f): of an event's source, before the event.

    `earlier_events` is how many it had, `idle` the ticks since the last (since the first event of
    the log if it had none), both as log(1 + x); `both` has both; `constant` knows nothing.

    >>> log = EventLog.from_arrays([0, 1, 0], [1, 2, 2], [0, 5, 9])
    >>> np.expm1(trivial_features(log)["both"]).round(9).tolist()
    [[0.0, 0.0], [1.0, 5.0], [1.0, 9.0]]
    """
    time = log.events.time
    count, last = np.zeros((2, log.num_nodes), np.int64)
    last[:] = time[0] if len(log) else 0
    rows = np.empty((len(log), 2))
    columns = (log.events.src.tolist(), log.events.dst.tolist(), time.tolist())
    for row, (src, dst, now) in enumerate(zip(*columns, strict=True)):
        rows[row] = count[src], now - last[src]
        count[src] += 1
        count[dst] += src != dst
        last[src] = last[dst] = now
    both = np.log1p(rows)
    return {
        "constant": np.zeros((len(log), 1)),
        "earlier_events": both[:, :1],
        "idle": both[:, 1:],
        "both": both,
    }


def embed_sources(
    log: EventLog,
    model: DynamicGNN,
    config: TrainConfig,
    progress: Progress | None = None,
) -> Float64:
    """The embedding (n, width) of each event's source, from the states before the event.

    `model` walks over the whole log from new states and learns nothing.  `progress` is called after
    each segment with `done_events` and `total_events`.
    """
    executor = make_executor(log, model, config)
    found: list[Float64] = []
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for start, stop in segments(0, len(log), config.batch_size):
                segment = executor.replay.resolve(start, stop)
                outcome = executor.run(executor.prepare(segment), embed=True)
                assert outcome.embedded is not None
                if not outcome.embedded.isfinite().all():
                    raise ValueError(
                        f"embeddings of events [{start}, {stop}) must be finite: the model has "
                        "probably diverged, try a smaller learning rate"
                    )
                found.append(outcome.embedded.cpu().double().numpy())
                outcome.commit()
                if progress is not None:
                    progress({"done_events": stop, "total_events": len(log)})
    finally:
        model.train(was_training)
    return np.concatenate(found)


def label_task(
    log: EventLog,
    model: DynamicGNN,
    config: TrainConfig,
    *,
    classifier: str = "logistic",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """How well the labels of `log` are read from the embeddings of a trained `model`; plain types.

    The parts are those of `split_log`, and `config` says how the model was run; it must not have
    learned from events after the train part.  Beside the model stand `trivial_features`.

    Raises:
        ValueError: if the log has no labels, or its train part holds one class only.
    """
    labels = read_labels(log)
    split = split_log(log, config.val_ratio, config.test_ratio, seed=config.split_seed)
    parts = {"train": slice(0, split.val_start)}
    parts |= {part: slice(*span) for part, span in split.spans.items()}
    check_classes(labels[parts["train"]])
    features = {config.model: embed_sources(log, model, config, progress), **trivial_features(log)}
    return to_plain(  # type: ignore[no-any-return]
        {
            "log": log.name,
            "task": "labels",
            "metrics": score_labels(
                labels, features, parts, classifier=classifier, seed=config.seed
            ),
            "events": {part: len(labels[span]) for part, span in parts.items()},
            "positives": {part: labels[span].sum() for part, span in parts.items()},
            "scoring": {
                "metric": "ROC AUC",
                "tie_rule": "a tied pair is worth 1/2",
                "classifier": {
                    "logistic": "logistic regression, classes balanced, strength of the best "
                    f"validation AUC of {', '.join(map(str, STRENGTHS))}",
                    "mlp": f"MLP with hidden layers of {HIDDEN[0]} and {HIDDEN[1]}",
                }[classifier],
                "features": "standardised on the train part",
                "batch_size": config.batch_size,
                "consistency": config.consistency,
                "seed": config.seed,
                "data_checksum": log.checksum,
            },
            "config": config.model_dump(),
            "versions": versions(),
        }
    )


def label_run(
    log: EventLog,
    config: TrainConfig,
    folder: str | Path,
    *,
    classifier: str = "logistic",
    force: bool = False,
    reading: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """`label_task` of the weights that validated best in the run in `folder`; labels.json there.

    The run is one on links, of the protocol "split"; it is made, or gone on with, if it is not
    finished, and made again with `force`.  `progress` is called as `fit` calls it, with the `run`,
    "training" or "embedding", that it is about.

    Raises:
        ValueError: if the log has no labels, or the protocol or classifier is another.
        CheckpointError: if the run is damaged, or of another log or other settings.
    """
    if config.protocol != "split":
        raise ValueError(
            "labels need a model that has not learned from the parts to validate and test on: "
            f"`protocol` must be 'split', got {config.protocol!r}"
        )
    if classifier not in CLASSIFIERS:
        raise ValueError(f"`classifier` must be one of {CLASSIFIERS}: got {classifier!r}")
    read_labels(log)
    folder = Path(folder)
    fit(
        *(log, config, folder),
        resume=not force,
        force=force,
        reading=reading,
        progress=_about("training", progress),
    )
    model = trained_model(log, config, folder)
    with threads_of(config):
        told = _about("embedding", progress)
        found = label_task(log, model, config, classifier=classifier, progress=told)
    write_whole(folder / "labels.json", (to_json(found) + "\n").encode())
    return found


def _about(run: str, progress: Progress | None) -> Progress | None:
    return None if progress is None else lambda figures: progress({**figures, "run": run})


def trained_model(log: EventLog, config: TrainConfig, folder: Path) -> DynamicGNN:
    """The model of the finished run on a split in `folder`, with the weights that validated best.

    Raises:
        CheckpointError: if there is none, or it is of another log or other settings.
    """
    place = folder / "checkpoints"
    if not has_checkpoint(place):
        raise CheckpointError(
            f"{place} is gone, and with it the weights: --force (in Python `force=True`) trains "
            "them again"
        )
    tensors, meta = read_checkpoint(place)
    runs.check_is_same(place, meta["config"], meta["log"], log, config)
    model = make_model(log, config)
    model.load_state_dict(below("best", tensors))
    return model


def print_labels(console: Console, found: Mapping[str, Any], place: str | None) -> None:
    """Prints the AUC of the model and of what needs none, the best in bold."""
    metrics, scoring = found["metrics"], found["scoring"]
    table = ruled([""], ["validation AUC", "test AUC"])
    best = {
        part: max((s[part] for s in metrics.values() if s[part] is not None), default=None)
        for part in ("val", "test")
    }
    for name, scores in metrics.items():
        cells = (score_text(scores[part], "auc", best[part]) for part in best)
        table.add_row(Text(name), *cells)
    console.print(table)
    counts = [f"{n} of {found['events'][p]:,} in {p}" for p, n in found["positives"].items()]
    console.print(Text(f"events with label 1: {', '.join(counts)}"))
    words = [
        f"{name.replace('_', ' ')}: {scoring[name]}"
        for name in ("classifier", "tie_rule", "batch_size", "consistency", "seed")
    ]
    words.append(f"data {scoring['data_checksum'][:12]}")
    console.print(Text("; ".join(words)), soft_wrap=True)
    if place is not None:
        console.print(Text(f"labels: {place}"), soft_wrap=True)
