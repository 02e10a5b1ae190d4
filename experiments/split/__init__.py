"""The split protocol: train on the first part of a log, validate on the next, test on the last."""

from .evaluate import SETTINGS
from .pairs import STRATEGIES
from .parts import Split, split_log
from .trainer import SplitTrainer, run_epochs

__all__ = ["SETTINGS", "STRATEGIES", "Split", "SplitTrainer", "run_epochs", "split_log"]
