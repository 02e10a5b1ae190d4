"""How elapsed time enters a model: as cosines of many periods, or as a drift of the state.

Times come in as float64: of a gap of months in seconds, a float32 phase keeps no digit.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from .kernels.cosine import encode_times, slopes_of_times


class _Cosine(Function):
    """cos(f t + b) in `dtype`, of t (...), f and b (width,) in float64; no gradient goes into t.

    The phase is counted in turns, in float64, and whole turns are dropped before it is rounded, so
    that cosine and sine may be taken in `dtype`.
    """

    @staticmethod
    def forward(
        ctx: Any, seconds: Tensor, frequency: Tensor, bias: Tensor, dtype: torch.dtype
    ) -> Tensor:
        rate, offset = frequency / math.tau, bias / math.tau
        ctx.compiled = can_compile(bias.device, dtype)
        if ctx.compiled:
            ctx.save_for_backward(seconds, rate, offset)
            code = torch.empty(*seconds.shape, len(rate), dtype=dtype)
            flat = seconds.contiguous().view(-1), rate, offset, code.view(-1, len(rate))
            encode_times(*(each.detach().numpy() for each in flat))
            return code
        turns = torch.addcmul(offset, seconds.unsqueeze(-1), rate)
        phase = turns.frac_().mul_(math.tau).to(dtype)
        ctx.save_for_backward(seconds, phase)
        return torch.cos(phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor, None]:
        learned = ctx.needs_input_grad[1]
        if ctx.compiled:
            seconds, rate, offset = ctx.saved_tensors
            by_phase = torch.zeros_like(rate)
            by_rate = torch.zeros_like(rate if learned else rate[:0])
            flat = seconds.contiguous().view(-1), rate, offset, grad.reshape(-1, len(rate))
            slopes_of_times(*(each.contiguous().numpy() for each in (*flat, by_phase, by_rate)))
            return None, by_rate if learned else None, by_phase, None
        seconds, phase = ctx.saved_tensors
        slope = torch.sin(phase).mul_(grad).flatten(0, -2)  # its sign yet to change
        by_frequency = None
        if learned:
            by_frequency = -(seconds.to(slope.dtype).flatten() @ slope).double()
        return None, by_frequency, -slope.sum(0).double(), None


class TimeEncoding(nn.Module):
    """cos(f t + b) with learnable b, and f = base x weight if the frequencies are `learned`.

    The base runs from 1 to 1e-9 per second, evenly in its logarithm: periods from six seconds to
    two hundred years, as the code of Rossi et al. starts it after Xu et al., "Inductive
    Representation Learning on Temporal Graphs", ICLR 2020.  There f itself is learned, which does
    harm twice.  A step of Adam is about as large as the learning rate, so that of a frequency of
    1e-6 nothing is left after one: here a step changes each by a share of it.  And a change of f
    turns the phase of a gap of months by thousands of times as much, so that rounding errors grow
    a thousandfold a step and no two executions agree: so frequencies stand still unless told
    otherwise (as in Cong et al., "Do We Really Need Complicated Model Architectures For Temporal
    Networks?", ICLR 2023).

    >>> encoding = TimeEncoding(4).double()
    >>> encoding.base.log10().round(decimals=3).tolist()
    [0.0, -3.0, -6.0, -9.0]
    >>> encoding(torch.tensor([0.0, 3141.592653589793])).round(decimals=3)[:, 1].tolist()
    [1.0, -1.0]
    """

    base: Tensor

    def __init__(self, width: int, *, learned: bool = False) -> None:
        super().__init__()
        exponents = torch.linspace(0.0, 9.0, width, dtype=torch.float64)
        self.register_buffer("base", (0.1**exponents).to(torch.get_default_dtype()))
        self.weight = nn.Parameter(torch.ones(width)) if learned else None
        self.bias = nn.Parameter(torch.zeros(width))

    def frequency(self) -> Tensor:
        """Radians a second, (width,) float64."""
        frequency = self.base.double()
        return frequency if self.weight is None else frequency * self.weight.double()

    def forward(self, seconds: Tensor) -> Tensor:
        """The code (..., width) of gaps (...)."""
        code: Tensor = _Cosine.apply(  # type: ignore[no-untyped-call]
            seconds.double(), self.frequency(), self.bias.double(), self.bias.dtype
        )
        return code


class Drift(nn.Module):
    """(1 + t w) state, where t = log(1 + idle) (Kumar et al., KDD 2019, section 3.2).

    The published t is the time since the node's last event, standardised over the whole log, which
    a stream cannot know; here it is counted in mean gaps of a node, and its logarithm taken, so
    that a state does not grow without bound while its node rests.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))  # as the authors start it

    def forward(self, state: Tensor, idle: Tensor) -> Tensor:
        """The state (..., width) after `idle` (...) mean gaps of a node."""
        elapsed = torch.log1p(idle).to(state.dtype).unsqueeze(-1)
        return state * (1 + elapsed * self.weight)


def can_compile(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the compiled loops serve such tensors."""
    return device.type == "cpu" and dtype in (torch.float32, torch.float64)
