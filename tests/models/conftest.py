"""The tests of this folder run on one thread."""

from ..threads import one_thread

__all__ = ["one_thread"]
