"""How many launches, and engine-seconds, does a search need? Strategies on landscapes whose optimum is known.

    python -m benchmarks.search                                  # the subset of ten minutes; `make bench-search`
    python -m benchmarks.search --full                           # everything; hours on 2 cores, resumable
    python -m benchmarks.search --only ours tpe --on chat-8b-h100@structural --seeds 3

One strategy on one landscape, from Python:

    from benchmarks.search.landscapes import landscape
    from benchmarks.search.optima import optimum_of
    from benchmarks.search.protocol import run
    from benchmarks.search.strategies import STRATEGIES

    hill = landscape("chat-8b-h100@structural")
    found = run("ours", STRATEGIES["ours"], hill, seed=1, launches=40, optimum=optimum_of(hill))
    for step in found.steps:
        print(step.outcome, step.value, step.quality, step.engine_s, step.asked_s)

`landscapes` says which there are, `truth` what their machines are really like, `evaluation` what a launch measures,
`protocol` how a strategy is asked and told, `strategies` who competes, `table` what comes of it. `optima` searches the
best there is, `measure_vllm_cpu.py` measures the real landscape, which `real` replays. Two landscapes are held out.

A launch takes 10 to 90 ms to evaluate, its truth 20 to 370 ms (only asked of launches that may be near the best). Both
are remembered in runs/bench-search; delete that folder to begin afresh.
"""
