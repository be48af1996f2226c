"""`autotune report RUN`: one HTML file that holds everything it needs and fetches nothing.

Names, values and log lines are data of strangers: every text passes through `escape`, and a content policy lets no
script run but the two whose hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from pathlib import Path

from plotly.offline import get_plotlyjs

from autotune.report.charts import charts
from autotune.report.drawing import Chart
from autotune.report.sections import environment, failures, reproduce, results, trials_table
from autotune.report.verdict import banners, details, doubts, headline
from autotune.report.view import RunView, read_view
from autotune.report.words import plain
from autotune.trial.store import RunDirectory, write_atomically

_PAGE = Path(__file__).with_name("page")


def write_report(run: RunDirectory, path: Path) -> Path:
    """Write the page of a run, finished or not, to `path` and return it. Raises InputError when this is no run."""
    write_atomically(path, page(read_view(run)).encode())
    return path


def page(view: RunView) -> str:
    """Return the whole page."""
    scripts = (get_plotlyjs().replace("\r\n", "\n"), (_PAGE / "page.js").read_text())
    name = escape(plain(view.spec.name))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} - autotune</title>
<style>
{(_PAGE / "page.css").read_text()}</style>
</head>
<body>
<header>
<p class="study">autotune · study <strong>{name}</strong> · {escape(plain(view.spec.model))}</p>
<h1>{escape(headline(view))}</h1>
{_banners(view)}
{_paragraphs(details(view))}
</header>
<main>
{results(view)}
{"".join(_chart(chart) for chart in charts(view))}
{trials_table(view)}
{failures(view)}
{environment(view)}
{reproduce(view)}
</main>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _policy(scripts: Iterable[str]) -> str:
    """Plotly sets styles and draws data images; it needs nothing else."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _banners(view: RunView) -> str:
    lines = banners(view)
    if view.best is not None and not view.confirmed:
        lines.append("NOT CONFIRMED: " + "; ".join(doubts(view)))
    return "".join(f'<p class="banner" role="alert">{escape(line)}</p>' for line in lines)


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines if not line.startswith("Not confirmed"))


def _chart(chart: Chart) -> str:
    heading = f'<section id="{chart.name}"><h2>{escape(chart.title)}</h2><p class="note">{escape(chart.note)}</p>'
    if chart.figure is None:
        return heading + "</section>"
    width = f' style="min-width:{chart.min_width_px}px"' if chart.min_width_px else ""
    data = chart.figure.to_json()  # plotly writes `<` as \u003c, so that nothing in it can end the script
    return (
        f'{heading}<div class="wide"><div class="chart" id="chart-{chart.name}"{width}></div></div>'
        f'<script type="application/json" data-chart="chart-{chart.name}">{data}</script></section>'
    )
