#!/bin/sh
# On a machine with an NVIDIA GPU and TensorRT-LLM (or its image, or vLLM): a study of three trials, and what it showed.
#
#   scripts/gpu_check.sh [OUT]                  # default: gpu-check
#
# Unattended, below eight minutes, and loud: the last line is PASS or FAIL, the exit status 0 or 1, and OUT/result.txt has
# every check with what was seen. Nothing is fetched: the model is made here, with random weights. From the environment:
#
#   COMMAND       the engine's program (default: trtllm-serve, else vllm, from the PATH)
#   IMAGE         an image in the place of a program: nvcr.io/nvidia/tensorrt-llm/release:TAG, or one of vLLM's
#   RUNTIME       docker (the default) or podman, for IMAGE
#   ENGINE_PYTHON a Python with torch, safetensors and tokenizers, to make the model (default: python3)
#   MODEL         a model folder, in the place of the one made here
#   GPUS          indices or UUIDs, separated by commas (default: 0)
#   LOAD_S        seconds of load a trial (default: 20)
#   LIMIT_S       seconds for the study (default: 420)
#
# In NVIDIA's image, with autotune's checkout mounted and installed into a virtual environment of its own:
#   docker run --rm --gpus all --ipc=host -v "$PWD:/autotune" -w /autotune IMAGE scripts/gpu_check.sh
set -eu
cd "$(dirname "$0")/.."

out=${1:-gpu-check}
autotune=${AUTOTUNE:-.venv/bin/autotune}
fail() {
    echo "FAIL: $*" >&2
    exit 1
}

[ -e "$out" ] && fail "$out exists; give another folder"
command -v nvidia-smi >/dev/null || fail "there is no nvidia-smi: this needs an NVIDIA GPU"
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader >/dev/null || fail "nvidia-smi finds no GPU"
[ -x "$autotune" ] || fail "there is no $autotune: make setup, or set AUTOTUNE"

runtime=${RUNTIME:-docker}
if [ -n "${IMAGE:-}" ]; then
    command -v "$runtime" >/dev/null || fail "there is no $runtime for IMAGE; set RUNTIME"
    "$runtime" image inspect "$IMAGE" >/dev/null 2>&1 || fail "the image is not here: $runtime pull $IMAGE"
    program=${COMMAND:-}
    started="container: {runtime: $runtime, image: '$IMAGE'}"
else
    program=${COMMAND:-$(command -v trtllm-serve || command -v vllm || true)}
    [ -n "$program" ] || fail "there is neither trtllm-serve nor vllm on the PATH; set COMMAND or IMAGE"
fi
[ -z "$program" ] || started="command: $program${IMAGE:+
  $started}"
case ${IMAGE:-}$program in
*vllm*) kind=vllm limit=max_num_seqs budget=max_num_batched_tokens length=max_model_len ;;
*) kind=tensorrt_llm limit=max_batch_size budget=max_num_tokens length=max_seq_len ;;
esac

mkdir -p "$out"
out=$(cd "$out" && pwd)
nvidia-smi >"$out/nvidia-smi.txt"
model=${MODEL:-$out/model}
if [ -z "${MODEL:-}" ]; then
    if [ -n "${IMAGE:-}" ]; then
        "$runtime" run --rm --user "$(id -u):$(id -g)" -v "$PWD/scripts:/scripts:ro" -v "$out:$out" \
            --entrypoint python3 "$IMAGE" /scripts/make_tiny_model.py "$model"
    else
        "${ENGINE_PYTHON:-python3}" scripts/make_tiny_model.py "$model"
    fi ||
        fail "the model could not be made; set ENGINE_PYTHON to the engine's Python, or MODEL to a folder"
fi

cat >"$out/study.yaml" <<EOF
name: gpu-check
model: $model
engine:
  kind: $kind
  $started
  env: {HF_HUB_OFFLINE: "1"}
  startup_timeout_s: 180
hardware: {gpus: [${GPUS:-0}]}
search_space:
  engine: $kind
  parameters:
    $limit: {choice: [8, 16, 32, 64], why: What bounds the batch.}
    $budget: {choice: [1024, 2048, 4096], why: What bounds a step.}
  derived: {$length: longest_request_tokens}
objective:
  name: gpu-check
  maximize: output_tok_per_s
  slos: {ttft_ms.p50: 5000}
  workload: {input_tokens: {uniform: [64, 256]}, output_tokens: {uniform: [32, 64]}}
  load: {concurrency: 16, duration_s: ${LOAD_S:-20}, warmup_s: 2}
budget: {trials: 3}
finals: false  # a soak alone would take most of the eight minutes
seed: 1
EOF

status=0
timeout --kill-after=30 "${LIMIT_S:-420}" "$autotune" study "$out/study.yaml" --runs "$out/runs" \
    --accept-unsure >"$out/study.log" 2>&1 || status=$?
nvidia-smi >"$out/nvidia-smi-after.txt"
echo "autotune study ended with $status" | tee "$out/result.txt"
[ "$status" -eq 0 ] || {
    tail -n 20 "$out/study.log" >&2
    fail "the study did not end well (124: it took longer than LIMIT_S); engine logs are in $out/runs"
}
"$(dirname "$autotune")/python" scripts/gpu_check_result.py "$out/runs/gpu-check" | tee -a "$out/result.txt"
if grep -q '^no ' "$out/result.txt" || ! grep -q '^yes ' "$out/result.txt"; then
    fail "some checks did not hold: $out/result.txt"
fi
echo "PASS: $out/result.txt"
