"""Prices and endpoints in a study file: what fits together, and at which line it is told that something doesn't."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.records.spec import EngineKind, PriceSpec, TokenPrice
from autotune.study import load_study
from tests.study.writing import SOUND, changed, refusal, write

PRICED = SOUND + "price: {usd_per_gpu_hour: 2.5}\n"
ENDPOINT = """\
name: test
model: some/model
engine:
  kind: endpoint
  url: http://localhost:8000/v1
objective:
  maximize: output_tok_per_s
  slos: {ttft_ms.p90: 500, error_ratio: 0.01}
  workload: {input_tokens: 128, output_tokens: 32}
  load: {concurrency: 8}
"""


def test_a_price_is_read_with_its_overheads(tmp_path: Path) -> None:
    price = "{usd_per_gpu_hour: 2.5, rate_rps: 20, overheads: {network_usd: 100}, api: {usd_per_million_output_tok: 4}}"
    spec = load_study(write(tmp_path, f"{SOUND}price: {price}\n"))
    assert spec.price is not None
    assert (spec.price.usd_per_gpu_hour, spec.price.rate_rps) == (2.5, 20)
    assert (spec.price.overheads.network_usd, spec.price.headroom_ratio) == (100, 0.3)
    assert spec.price.api == TokenPrice(usd_per_million_output_tok=4)


@pytest.mark.parametrize(
    ("price", "told"),
    [
        ("{}", "price: needs exactly one of"),
        ("{usd_per_gpu_hour: 1, usd_per_hour: 1}", "price: needs exactly one of"),
        ("{usd_per_gpu_hour: 0}", "price.usd_per_gpu_hour: must be above 0"),
        ("{usd_per_gpu_hour: 1, headroom_ratio: 1}", "price.headroom_ratio: must be below 1"),
        ("{usd_per_gpu_hour: 1, usd_per_million_input_tok: 1}", "price.usd_per_million_input_tok: goes with"),
        ("{usd_per_gpu_hour: 1, overheads: {network: 1}}", "price.overheads.network: unknown key; did you mean net"),
        ("{usd_per_million_output_tok: 4}", "price: only an endpoint charges by the token, the engine is vllm"),
        ("{usd_per_gpu_hours: 1}", "price.usd_per_gpu_hours: unknown key; did you mean usd_per_gpu_hour?"),
    ],
)
def test_an_unsound_price_is_told_at_its_line(price: str, told: str, tmp_path: Path) -> None:
    lines = refusal(write(tmp_path, f"{SOUND}price: {price}\n"))
    assert any(line.startswith(f"19: {told}") for line in lines), lines


@pytest.mark.parametrize("metric", ["usd_per_million_output_tok", "usd_per_useful_response"])
def test_a_cost_metric_without_a_price_is_told_where_it_is_named(metric: str, tmp_path: Path) -> None:
    as_slo = refusal(write(tmp_path, changed("error_ratio: 0.01", f"{metric}: 0.4")))
    assert as_slo == [
        f"15: objective.slos.{metric}: {metric} needs a price; add `price: {{usd_per_gpu_hour: …}}` to the study"
    ]
    as_goal = refusal(write(tmp_path, changed("maximize: output_tok_per_s", f"minimize: {metric}")))
    assert as_goal[0].startswith(f"14: objective.minimize: {metric} needs a price")
    load_study(
        write(tmp_path, changed("maximize: output_tok_per_s", f"minimize: {metric}") + "price: {usd_per_hour: 1}\n")
    )


def test_energy_is_known_of_real_gpus_only(tmp_path: Path) -> None:
    text = changed("error_ratio: 0.01", "energy_wh_per_million_output_tok: 200")
    load_study(write(tmp_path, text))
    assert (
        "can't be known of kind simulated" in refusal(write(tmp_path, text.replace("kind: vllm", "kind: simulated")))[0]
    )


def test_an_endpoint_needs_no_space_and_may_charge_by_the_token(tmp_path: Path) -> None:
    text = ENDPOINT + "price: {usd_per_million_input_tok: 0.5, usd_per_million_output_tok: 4.2}\n"
    spec = load_study(write(tmp_path, text.replace("/v1\n", "/v1\n  api_key_env: MY_KEY\n")))
    assert (spec.engine.kind, spec.engine.url) == (EngineKind.ENDPOINT, "http://localhost:8000/v1")
    assert (spec.engine.api_key_env, spec.search_space.parameters, spec.budget.trials) == ("MY_KEY", (), 1)
    assert spec.price == PriceSpec(usd_per_million_input_tok=0.5, usd_per_million_output_tok=4.2)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("  url: http://localhost:8000/v1\n", "", "3: engine.url: is missing; add it: an endpoint runs already"),
        ("8000/v1\n", "8000/v1\n  command: vllm\n", "6: engine.command: has no effect: nothing is launched"),
        ("8000/v1\n", "8000/v1\n  args: {a: 1}\n", "6: engine.args: has no effect: nothing is launched"),
        ("8000/v1\n", "8000/v1\nsearch_space: vllm/cpu\n", "6: search_space: has no effect: an endpoint is measured"),
        ("8000/v1\n", "8000/v1\nincumbent: {a: 1}\n", "6: incumbent: has no effect: an endpoint is measured as"),
        ("8000/v1\n", "8000/v1\n  api_key_env: sk-123\n", '6: engine.api_key_env: "sk-123" can\'t be used as a name'),
        ("  kind: endpoint\n", "  kind: vllm\n", "5: engine.url: has no effect with kind vllm; remove it, or set kind"),
        ("  kind: endpoint\n", "  kind: vllm\n", "1: search_space: is missing; add it"),
    ],
)
def test_what_makes_no_sense_of_an_endpoint_is_told(old: str, new: str, told: str, tmp_path: Path) -> None:
    assert ENDPOINT.count(old) == 1
    lines = refusal(write(tmp_path, ENDPOINT.replace(old, new)))
    assert any(line.startswith(told) for line in lines), lines
