#!/bin/sh
# Written by autotune; the evidence is in best.json.
# study llama-8b-chat, trial 5, fingerprint f002cba362e95691, 2026-05-01T12:00:00Z
# Needs these in the environment: HF_TOKEN
# Left out, being paths where it was measured: HF_HOME
# Image: TensorRT-LLM's own of the version that was measured, 1.2.0, outside a container.
set -eu
export TRTLLM_NO_USAGE_STATS=1
export HF_TOKEN="${HF_TOKEN?set HF_TOKEN, which the engine needs}"
export NCCL_DEBUG=WARN
exec docker run --rm --stop-timeout 10 \
  --publish "${HOST:-127.0.0.1}:${PORT:-8000}:8000" \
  --gpus "${GPUS:-all}" \
  --volume "${HF_HUB_CACHE:-$HOME/.cache/huggingface/hub}:/autotune/hub" \
  --env HF_HUB_CACHE=/autotune/hub \
  --volume "$(cd "$(dirname "$0")" && pwd)/options.yaml:/autotune/options.yaml:ro" \
  --shm-size 16g \
  --ulimit memlock=-1 \
  --env TRTLLM_NO_USAGE_STATS \
  --env HF_TOKEN \
  --env NCCL_DEBUG \
  --entrypoint trtllm-serve nvcr.io/nvidia/tensorrt-llm/release:1.2.0 serve meta-llama/Llama-3.1-8B-Instruct \
  --host 0.0.0.0 \
  --port 8000 \
  --config /autotune/options.yaml
