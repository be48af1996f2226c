"""The simulated server reads its command line and YAML as vLLM 0.32 does."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engines.simulated.faults import KINDS, FaultError, parse_faults
from autotune.engines.simulated.flags import ServeArgs, parse
from autotune.engines.simulated.tokens import Prefix, PrefixIndex, Tokenizer, decode


def read(*argv: str) -> ServeArgs:
    return parse(["serve", "some/model", *argv], {}).serve


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        read(*argv)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_what_was_given_is_kept_apart_from_the_defaults() -> None:
    args = read("--max-num-seqs", "8", "-tp", "2")
    assert args.given == {"max_num_seqs": 8, "tensor_parallel_size": 2}
    assert args.values["gpu_memory_utilization"] == 0.92
    assert (args.model, args.host, args.port) == ("some/model", "127.0.0.1", 8000)


def test_spellings_of_vllm_are_understood() -> None:
    args = read(
        "--max_num_seqs=8", "--no-enable-prefix-caching", "--max-num-batched-tokens", "8k", "--max-model-len", "auto"
    )
    assert args.given == {
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
        "max_num_batched_tokens": 8000,
        "max_model_len": -1,
    }
    nested = read("--compilation-config.mode", "3", "--compilation-config.pass_config.fuse=true")
    assert nested.given["compilation_config"] == {"mode": 3, "pass_config": {"fuse": True}}


def test_the_served_name_is_the_models_unless_given() -> None:
    assert read().served_name == "some/model"
    assert read("--served-model-name", "m", "n").served_name == "m"


def test_an_unknown_flag_is_refused_in_vllms_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert "vllm: error: unrecognized arguments: --max-num-seqz 8" in refusal(capsys, "--max-num-seqz", "8")


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--max-num-seqs", "many", "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'"),
        ("--max-num-batched-tokens", "8q", "invalid human_readable_int value: '8q'"),
        ("--kv-cache-dtype", "fp9", "argument --kv-cache-dtype: invalid choice: 'fp9'"),
        ("--compilation-config", "{", "cannot be converted"),
    ],
)
def test_a_bad_value_is_refused_in_vllms_words(
    capsys: pytest.CaptureFixture[str], flag: str, value: str, message: str
) -> None:
    assert message in refusal(capsys, flag, value)


# --- YAML -------------------------------------------------------------------------------------------------------------


def with_config(tmp_path: Path, text: str, *argv: str) -> ServeArgs:
    path = tmp_path / "engine.yaml"
    path.write_text(text)
    return read("--config", str(path), *argv)


def test_false_in_yaml_is_dropped_and_true_is_not(tmp_path: Path) -> None:
    args = with_config(tmp_path, "enable-prefix-caching: false\nenforce-eager: true\n")
    assert args.given == {"enforce_eager": True}


def test_the_command_line_wins_over_yaml(tmp_path: Path) -> None:
    args = with_config(tmp_path, "max-num-seqs: 8\nmax_num_batched_tokens: 512\n", "--max-num-seqs", "16")
    assert (args.values["max_num_seqs"], args.values["max_num_batched_tokens"]) == (16, 512)


def test_nested_yaml_and_lists_become_arguments(tmp_path: Path) -> None:
    args = with_config(tmp_path, "compilation-config:\n  mode: 3\ncudagraph-capture-sizes: [1, 2]\n")
    assert args.given == {"compilation_config": {"mode": 3}, "cudagraph_capture_sizes": [1, 2]}


def test_an_unknown_key_in_yaml_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        with_config(tmp_path, "max-num-seqz: 8\n")
    assert "--max-num-seqz" in capsys.readouterr().err


def test_yaml_without_a_proper_name_or_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "yaml/yml type" in refusal(capsys, "--config", "engine.toml")
    assert "FileNotFoundError" in refusal(capsys, "--config", str(tmp_path / "none.yaml"))
    assert "No config file specified" in refusal(capsys, "--config")


# --- the simulator's own ----------------------------------------------------------------------------------------------


def test_options_come_from_the_environment_and_the_command_line_wins() -> None:
    env = {"AUTOTUNE_SIM_GPU": "l40s", "AUTOTUNE_SIM_TIME_SCALE": "4", "AUTOTUNE_SIM_FAULTS": "slow_start:1,leaves_shm"}
    sim = parse(["m", "--sim-gpu", "a100", "--sim-fault", "oom:profile"], env).sim
    assert (sim.gpu, sim.time_scale) == ("a100", 4)
    assert sim.faults.number("slow_start") == 1
    assert "leaves_shm" in sim.faults
    assert sim.faults.text("oom") == "profile"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slowstart", "did you mean 'slow_start'"),
        ("zzz", "there are: slow_start"),
        ("oom:lunch", "takes one of free_memory"),
        ("slow_start:long", "takes a number"),
        ("half_chunk:2", "takes no value"),
        ("drops_flag", "needs a value"),
    ],
)
def test_a_fault_that_can_not_be_had_is_refused_with_what_can(text: str, message: str) -> None:
    with pytest.raises(FaultError, match=message):
        parse_faults([text])


def test_a_time_scale_must_be_positive(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["m", "--sim-time-scale", "0"], {})
    assert "above 0" in capsys.readouterr().err


def test_help_lists_every_fault_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"], {})
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(kind.name in text and kind.help in text for kind in KINDS)
    assert "AUTOTUNE_SIM_TIME_SCALE" in text


# --- tokens and prefixes ----------------------------------------------------------------------------------------------


def test_every_token_survives_the_way_to_text_and_back() -> None:
    tokenizer = Tokenizer(151_936)
    tokens = [*range(0, 151_936, 97), 151_935]
    assert tokenizer.encode(decode(tokens)) == tokens


def test_other_text_is_cut_the_same_way_every_time_and_stays_in_the_vocabulary() -> None:
    tokens = Tokenizer(1000).encode("Hello, wonderful world! Ünïcode 漢字\n")
    assert tokens == Tokenizer(1000).encode("Hello, wonderful world! Ünïcode 漢字\n")
    assert max(tokens) < 1000


def test_prompts_that_share_blocks_share_a_group() -> None:
    index = PrefixIndex(block_tokens=4, capacity=100)
    first = index.find([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert first == Prefix(0, 8), "a new prompt opens a group with all of its whole blocks"
    assert index.find([1, 2, 3, 4, 0, 0, 0, 0]) == Prefix(0, 4)
    assert index.find([1, 2, 3, 4, 0, 0, 0, 0, 7]) == Prefix(0, 8), "the second prompt's own block is known by now"
    assert index.find([9, 2, 3, 4, 5, 6, 7, 8]) == Prefix(1, 8), "the same tokens after another start share nothing"
    assert index.find([1, 2, 3]) == Prefix(-1, 0)


def test_the_index_forgets_the_oldest_blocks_first() -> None:
    index = PrefixIndex(block_tokens=1, capacity=2)
    index.find([1])
    index.find([2])
    index.find([1])
    index.find([3])  # 2 goes
    assert index.find([1]) == Prefix(0, 1)
    assert index.find([2]).group == 3
