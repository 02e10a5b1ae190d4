"""A device of PyTorch that is not the CPU, for machines without a GPU.

It finds tensors that are made on the CPU where states are not, and numpy arrays asked of a device
that has none. What it does not show: CUDA's kernels, their speed, and NCCL.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import torch
from torch.utils import backend_registration

NAME = "elsewhere"


def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    return shutil.which(os.environ.get("CXX", "c++"))


def load() -> None:
    """Makes `torch.device("elsewhere")` known to this process; compiles it the first time."""
    if hasattr(torch, NAME):
        return
    backend_registration.rename_privateuse1_backend(NAME)
    torch.ops.load_library(str(_compiled()))  # type: ignore[no-untyped-call]
    module = types.ModuleType(f"torch.{NAME}")
    module.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        synchronize=lambda *_: None,
        manual_seed_all=lambda _: None,
        get_rng_state=lambda *_: torch.get_rng_state(),
        set_rng_state=lambda *_: None,
        get_amp_supported_dtype=list,
        _is_in_bad_fork=lambda: False,
    )
    torch._register_device_module(NAME, module)  # type: ignore[no-untyped-call]


def _compiled() -> Path:
    source = Path(__file__).with_name("device.cpp")
    seen = hashlib.sha256(source.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    library = source.parent / "__pycache__" / f"device-{seen}.so"
    if not library.exists():
        home = Path(torch.__file__).parent
        library.parent.mkdir(exist_ok=True)
        mine = library.with_suffix(f".{os.getpid()}")
        headers = [home / "include", home / "include/torch/csrc/api/include"]
        command = [compiler() or "c++", "-shared", "-fPIC", "-std=c++20", "-O0", "-w"]
        command += [f"-I{each}" for each in headers]
        command += [str(source), "-o", str(mine), f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu"]
        subprocess.run([*command, "-ltorch"], check=True, stdout=sys.stderr)
        mine.rename(library)  # whole, also for those that compile at the same time
    return library
