"""`autotune bench`: a server that already runs comes in, its figures and what they mean for an objective go out.

The path is a study's own: `trial.loading` loads the server, `trial.judging` judges it. `asked` is what the user wants,
`command` is the whole of it, `run` measures, `record` is what comes out, `view`, `words` and `show` are for people,
`export` writes requests, `aa` compares equal levels, `crosscheck` has another tool (`tools`) measure the same level.
"""

from autotune.bench.asked import Load
from autotune.bench.command import Options, bench_url
from autotune.bench.record import BenchRecord

__all__ = ["BenchRecord", "Load", "Options", "bench_url"]
