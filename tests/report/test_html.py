from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from autotune.records.summary import StudySummary
from autotune.records.trial import Outcome, TrialRecord
from autotune.report.html import page, write_report
from autotune.report.importance import importances
from autotune.report.view import make_view
from autotune.trial.store import RunDirectory
from tests.runs import HOSTILE, dozen, params, simulated, study, summary, trial, write_run


class Page(HTMLParser):
    """What a browser would see: tags with attributes, scripts, and the text outside of them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else ""
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif not self._inside:
            self.text += data

    def charts(self) -> dict[str, Any]:
        kinds = [attrs for tag, attrs in self.tags if tag == "script"]
        return {
            str(attrs["data-chart"]): json.loads(text)
            for attrs, text in zip(kinds, self.scripts, strict=True)
            if "data-chart" in attrs
        }


def page_of(trials: Sequence[TrialRecord], summarised: StudySummary | None, **changes: Any) -> Page:
    return Page(page(make_view(Path("runs/x"), study(**changes), trials, summarised)))


def long_study() -> list[TrialRecord]:
    """max_num_batched_tokens decides, the rest is noise."""
    draw = random.Random(7)
    tokens = [draw.choice([512, 1024, 2048, 4096, 8192, 16384]) for _ in range(60)]
    points = [(t, params(draw.choice([8, 64, 512]), t, draw.random() < 0.5, draw.choice([0, 2048]))) for t in tokens]
    return [
        trial(n, Outcome.OK, point, tok_per_s=100 + t / 50 + draw.random(), ttft_ms=200.0)
        for n, (t, point) in enumerate(points)
    ]


def test_the_page_is_one_file_that_fetches_nothing(tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path / "run", dozen(), summary()), tmp_path / "report.html")
    seen = Page(path.read_text())
    assert not [attrs for _, attrs in seen.tags if {"src", "href", "srcset", "action"} & set(attrs)]
    assert not [tag for tag, _ in seen.tags if tag in ("link", "iframe", "img", "object", "form")]
    policy = next(attrs["content"] or "" for tag, attrs in seen.tags if tag == "meta" and "http-equiv" in attrs)
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_only_the_two_scripts_that_the_policy_names_can_run() -> None:
    seen = page_of(dozen(), summary())
    policy = next(attrs["content"] or "" for tag, attrs in seen.tags if tag == "meta" and "http-equiv" in attrs)
    named = set(re.findall(r"'sha256-([^']+)'", policy))
    kinds = [attrs for tag, attrs in seen.tags if tag == "script"]
    runnable = [text for attrs, text in zip(kinds, seen.scripts, strict=True) if "type" not in attrs]
    assert {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in runnable} == named
    assert len(runnable) == 2


def test_hostile_names_and_logs_stay_text() -> None:
    plain_page = page_of(dozen(), summary())
    logged = trial(
        12, Outcome.BAD_CONFIG, {HOSTILE: HOSTILE}, cause=HOSTILE, log_tail=(HOSTILE,), versions={HOSTILE: HOSTILE}
    )
    hostile = page_of([*dozen(), logged], summary(warnings=(HOSTILE,)), name=HOSTILE, model=HOSTILE)
    assert "alert(1)" in hostile.text
    assert len(hostile.scripts) == len(plain_page.scripts)
    assert not [tag for tag, attrs in hostile.tags if tag == "img" or "onerror" in attrs]
    assert "\x1b" not in hostile.text
    assert "\u202e" not in hostile.text
    figures = json.dumps(hostile.charts())
    assert "<script" not in figures
    assert "<img" not in figures


def test_heading_and_banners_tell_the_verdict() -> None:
    assert "Best: trial 5, 312 output tok/s (293…331)" in page_of(dozen(), summary()).text
    assert "NOT CONFIRMED" not in page_of(dozen(), summary()).text
    fake = page_of([simulated(t) for t in dozen()], summary(simulated=True))
    assert "SIMULATED: no real engine ran; not evidence" in fake.text
    assert "NOT CONFIRMED: no real engine ran" in fake.text
    assert "NOT CONFIRMED: ttft_ms.p99 is unsettled" in page_of(dozen(), summary(best=6, confirmed=False)).text


@pytest.mark.parametrize(
    ("trials", "charts"),
    [
        ([], set()),
        (dozen()[:1], {"chart-history", "chart-pareto"}),
        ([t for t in dozen() if not t.outcome.measured], {"chart-parallel"}),
        (dozen(), {"chart-history", "chart-pareto", "chart-parallel"}),
        (long_study(), {"chart-history", "chart-pareto", "chart-importance", "chart-parallel"}),
    ],
    ids=["empty", "one", "all failed", "dozen", "long"],
)
def test_runs_of_every_kind_have_a_page(trials: list[TrialRecord], charts: set[str]) -> None:
    seen = page_of(trials, None)
    assert set(seen.charts()) == charts
    assert len(re.findall(r"\bdata-value", str(seen.tags))) == 4 * len(trials)


def test_the_trade_off_has_the_slo_line_and_the_front() -> None:
    beaten = trial(12, Outcome.SLO_MISS, params(8, 512), tok_per_s=100.0, ttft_ms=700.0)
    figure = page_of([*dozen(), beaten], summary()).charts()["chart-pareto"]
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [500.0]
    front = next(trace for trace in figure["data"] if trace["name"] == "front")
    assert front["x"] == [180.0, 310.0, 412.0, 488.0, 560.0, 1240.0]
    assert front["y"] == sorted(front["y"])


def test_the_history_shows_the_best_so_far_and_marks_what_failed() -> None:
    traces = {trace["name"]: trace for trace in page_of(dozen(), summary()).charts()["chart-history"]["data"]}
    assert (traces["best"]["x"], traces["misses an SLO"]["x"]) == ([5], [1, 10])
    assert (traces["best so far"]["x"], traces["best so far"]["y"]) == ([0, 3, 5, 11], [238.0, 238.0, 312.0, 312.0])
    assert traces["not measured"]["x"] == [2, 4, 7, 8, 9, 11]


def test_importance_finds_the_parameter_that_decides() -> None:
    shares = importances(study(), long_study())
    assert not isinstance(shares, str)
    assert max(shares, key=shares.__getitem__) == "max_num_batched_tokens"
    assert sum(shares.values()) == pytest.approx(1.0)


def test_importance_is_about_the_best_values_not_the_worst() -> None:
    """max_num_seqs=512 gives the best quarter, whatever the tokens; max_num_batched_tokens orders all the rest."""
    draw = random.Random(3)
    points = [params((512, 8, 32, 128)[n % 4], draw.choice([512, 1024, 2048, 4096, 8192, 16384])) for n in range(80)]
    trials = [
        trial(
            n,
            Outcome.OK,
            p,
            tok_per_s=900 + n if p["max_num_seqs"] == 512 else p["max_num_batched_tokens"] / 20,
            ttft_ms=9,
        )
        for n, p in enumerate(points)
    ]
    shares = importances(study(), trials)
    assert not isinstance(shares, str)
    assert max(shares, key=shares.__getitem__) == "max_num_seqs"


def test_importance_admits_what_few_trials_cannot_tell() -> None:
    assert importances(study(), dozen()) == "too few trials to tell: 5 were measured, 20 are needed"


def test_the_report_of_an_unknown_folder_is_refused(tmp_path: Path) -> None:
    from autotune.errors import InputError

    with pytest.raises(InputError, match="is not a run"):
        write_report(RunDirectory(tmp_path), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
