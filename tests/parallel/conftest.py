"""The tests of this folder run on one thread, and on a GPU as well if there is one."""

from ..devices import on_each_device, pytest_generate_tests
from ..threads import one_thread

__all__ = ["on_each_device", "one_thread", "pytest_generate_tests"]
