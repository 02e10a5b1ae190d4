"""`python -m neutronstream` and the `neutronstream` command: hands over to `experiments/cli.py`."""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Runs the command line; the exit code is 0, 2 for a refused input, 130 when interrupted."""
    _open_closed_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller ignores it
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from .experiments.cli import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Raises `KeyboardInterrupt`; leaves at once while a module loads, which might swallow it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            shown = b"\x1b[?25h" if os.isatty(2) else b""  # the cursor, if a spinner hides it
            os.write(2, shown + b"interrupted\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _open_closed_streams() -> None:
    """Gives standard streams that the caller closed to the null device, so that none is None.

    Else the next file that is opened, a report say, would take the number of stdout.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


if __name__ == "__main__":
    main()
