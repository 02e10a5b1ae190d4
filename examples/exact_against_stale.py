"""The same model on the same log, exact and as stale batches: what staleness costs."""

import neutronstream as ns

log = ns.messages(2_000, seed=4)
for batch_size in (20, 100):
    for consistency in ("exact", "batch"):
        config = ns.TrainConfig(
            model="tgn",
            width=16,
            batch_size=batch_size,
            consistency=consistency,
            size=200,
            candidates=20,
        )
        report = ns.fit(log, config)
        scores = report["metrics"]["tgn"]["last_half"]
        figures = f"AP {scores['ap']:.3f}  MRR {scores['mrr']:.3f}"
        seconds = report["throughput"]["seconds"]
        print(f"batch size {batch_size:3}  {consistency:5}  {figures}  {seconds:.1f} s")
