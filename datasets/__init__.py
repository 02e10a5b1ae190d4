"""Named logs of published data sets, and a generator of messages with a known structure."""

from .messages import messages
from .registry import Dataset, describe, load, names

__all__ = ["Dataset", "describe", "load", "messages", "names"]
