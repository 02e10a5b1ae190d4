"""The recurrent layers of PyTorch Geometric Temporal, without the compiled packages it declares.

The package asks for torch-sparse and torch-scatter, which compile from source for many minutes; all
it needs of them is one name in a type annotation of `evolvegcno.py`.  It is installed without its
dependencies, and that one import gets a stand-in where torch_sparse is absent.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType


class SparseTensor:
    """Stands where a type annotation names torch_sparse's tensor; never made."""


def load_geometric_temporal() -> ModuleType:
    """The module `torch_geometric_temporal`.

    Raises:
        ImportError: if it is not installed; the message says how to install it.
    """
    try:
        importlib.import_module("torch_sparse")
    except ImportError:
        stand_in = ModuleType("torch_sparse")
        stand_in.SparseTensor = SparseTensor  # type: ignore[attr-defined]
        sys.modules["torch_sparse"] = stand_in
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # its own and torch_geometric's
            return importlib.import_module("torch_geometric_temporal")
    except ImportError as error:
        raise ImportError(
            "the recurrent snapshot layers need PyTorch Geometric Temporal: run "
            "`pip install torch-geometric` and `pip install --no-deps torch-geometric-temporal`"
        ) from error
