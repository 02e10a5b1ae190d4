"""The same model on the same log with two windows: how much overlap helps, and what it costs."""

import neutronstream as ns

log = ns.messages(2_000, seed=2)
for size, stride in ((200, 200), (200, 50)):
    config = ns.TrainConfig(width=16, size=size, stride=stride, candidates=20)
    report = ns.fit(log, config)
    scores = report["metrics"]["dyrep"]["last_half"]
    figures = f"AP {scores['ap']:.3f}  MRR {scores['mrr']:.3f}"
    print(f"size {size} stride {stride}: {figures}  {report['throughput']['seconds']:.1f} s")
