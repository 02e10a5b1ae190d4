"""Where does the time of exact training go?  A flame graph, sampled from outside.

Trains a model on a log, one thread, batches of 200, 100 wide, while py-spy looks at its stack 500
times a second; draws docs/flame_MODEL.svg, in which a frame is as wide as its share of the samples,
callers below.  Compiled loops have no frames of their own: their time is that of the line of Python
that calls them.  Needs `pip install py-spy`.

    python benchmarks/flame.py [--model NAME] [--log NAME] [--events N] [--output FILE]

The answer is docs/performance.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from html import escape
from pathlib import Path

import torch
from common import finish  # type: ignore  # beside this file

from neutronstream.datasets import load
from neutronstream.models import build
from neutronstream.parallel import EXECUTORS, Replay

ROOT = Path(__file__).resolve().parents[1]
BATCH, WIDTH, WARM_UP = 200, 100, 4_000
CHART, ROW, LETTER = 1200.0, 18, 6.6  # pixels
COLORS = {"kernel": "#c8553d", "neutronstream": "#f28f3b", "torch": "#588b8b", "": "#b9b9b9"}


def train(model_name: str, log_name: str, events: int) -> None:
    """What is looked at: forward, backward and optimiser step over the first events of a log."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    log = load(log_name, limit=WARM_UP + events)
    model = build(model_name, width=WIDTH, kinds=log.kinds)
    replay = Replay(log, model, seed=0)
    executor = EXECUTORS["auto"](replay)
    optimiser = torch.optim.Adam(model.parameters(), fused=True)

    def learn(start: int) -> None:
        outcome = executor.run(
            executor.prepare(replay.resolve(start, min(start + BATCH, len(log))))
        )
        optimiser.zero_grad(set_to_none=True)
        outcome.losses.mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        model.constrain()
        outcome.commit()

    def warm_up() -> None:
        for start in range(0, WARM_UP, BATCH):
            learn(start)

    warm_up()
    for start in range(WARM_UP, len(log), BATCH):
        learn(start)


def label(frame: str) -> str:
    """`models/tgn.py embed` of `embed (/long/way/models/tgn.py:203)`."""
    name, _, place = frame.partition(" (")
    path = place.rstrip(")").rsplit(":", 1)[0]
    for root in ("neutronstream/", "site-packages/", "/lib/python3"):
        if root in path:
            path = path.rsplit(root, 1)[1]
            break
    return f"{Path(path).as_posix()} {name}" if path else name


def kind(frame: str) -> str:
    """What a frame is drawn as."""
    if frame.startswith("torch/"):
        return "torch"
    is_ours = frame.startswith(("parallel/", "models/", "storage/", "stream/"))
    return "neutronstream" if is_ours else ""


class Frame:
    """A call and what it called."""

    def __init__(self) -> None:
        self.samples = 0
        self.inner: dict[str, Frame] = {}

    def add(self, stack: list[str], samples: int) -> None:
        self.samples += samples
        if stack:
            self.inner.setdefault(stack[0], Frame()).add(stack[1:], samples)

    def depth(self) -> int:
        return 1 + max((frame.depth() for frame in self.inner.values()), default=0)


def read(folded: str) -> Frame:
    """The frames below `learn`, of lines `outer;inner;... samples`; a call to itself is one."""
    root = Frame()
    for line in folded.splitlines():
        stack, _, samples = line.rpartition(" ")
        frames = [label(frame) for frame in stack.split(";")]
        names = [frame.rsplit(" ", 1)[-1].rsplit(".", 1)[-1] for frame in frames]
        if "learn" in names and "warm_up" not in names:
            frames = frames[names.index("learn") + 1 :]
            once = [f for i, f in enumerate(frames) if i == 0 or f != frames[i - 1]]
            root.add(once, int(samples))
    return root


def own_time(frame: Frame, found: dict[str, int], name: str = "") -> dict[str, int]:
    """Samples in which each frame stood at the top."""
    rest = frame.samples - sum(inner.samples for inner in frame.inner.values())
    found[name] = found.get(name, 0) + rest
    for inner_name, inner in frame.inner.items():
        own_time(inner, found, inner_name)
    return found


def draw(root: Frame, title: str) -> str:
    """The flame graph as SVG."""
    height = ROW * (root.depth() + 2)
    parts: list[str] = []

    def place(frame: Frame, x: float, level: int) -> None:
        for name, inner in sorted(frame.inner.items()):
            width = CHART * inner.samples / root.samples
            if width >= 0.5:
                y = height - ROW * (level + 1)
                share = 100 * inner.samples / root.samples
                shown = name if LETTER * len(name) < width else name[: max(int(width / LETTER), 0)]
                parts.append(
                    f'<g><title>{escape(name)}: {share:.1f} %</title><rect x="{x:.1f}" y="{y}" '
                    f'width="{max(width - 0.5, 0.5):.1f}" height="{ROW - 1}" '
                    f'fill="{COLORS[kind(name)]}"/><text x="{x + 2:.1f}" y="{y + 13}">'
                    f"{escape(shown) if width > 20 else ''}</text></g>"
                )
                place(inner, x, level + 1)
            x += width

    place(root, 0.0, 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {CHART:.0f} {height}" '
        'font-family="monospace" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="4" y="14">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tgn")
    parser.add_argument("--log", default="wikipedia")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--train", action="store_true", help="what py-spy looks at")
    given = parser.parse_args()
    if given.train:
        train(given.model, given.log, given.events)
        return
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "stacks")
        wanted = ["--model", given.model, "--log", given.log, "--events", str(given.events)]
        command = ["py-spy", "record", "--format", "raw", "--rate", "500", "--output", str(raw)]
        child = [sys.executable, __file__, "--train", *wanted]
        subprocess.run([*command, "--", *child], check=True, capture_output=True)
        root = read(raw.read_text())
    output = given.output or ROOT / "docs" / f"flame_{given.model}.svg"
    title = f"exact {given.model}, {given.log}: {root.samples} samples"
    output.write_text(draw(root, title), encoding="utf-8")
    top: Mapping[str, int] = own_time(root, {})
    shares = {
        name: round(samples / root.samples, 4)
        for name, samples in sorted(top.items(), key=lambda item: -item[1])[:20]
    }
    for name, share in shares.items():
        print(f"{100 * share:5.1f} %  {name}")
    finish({"model": given.model, "log": given.log, "samples": root.samples, "top": shares}, seed=0)


if __name__ == "__main__":
    main()
