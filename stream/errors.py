"""What can go wrong that a caller would catch.

NeutronStreamError
├── LogError            a file cannot be read as an event log (also a ValueError)
├── OrderError          events that must be in time order are not (also a ValueError)
├── LeakError           the run-time check saw a neighbourhood that the oracle does not
└── CheckpointError     a checkpoint is missing, damaged or from another run (also a ValueError)
"""


class NeutronStreamError(Exception):
    """Base of every error of this package that is not a plain `ValueError` or `TypeError`."""


class LogError(NeutronStreamError, ValueError):
    """A file cannot be read as an event log; the message names file, line, column and value."""


class OrderError(NeutronStreamError, ValueError):
    """Events are not in time order where the caller asked for order."""


class LeakError(NeutronStreamError):
    """A sampled neighbourhood differs from the plain-Python oracle's."""


class CheckpointError(NeutronStreamError, ValueError):
    """A checkpoint is missing, damaged, or was written by a run with other settings."""
