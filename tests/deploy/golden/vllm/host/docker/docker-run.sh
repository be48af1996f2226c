#!/bin/sh
# Written by autotune; the evidence is in best.json.
# study llama-8b-chat, trial 5, fingerprint a2272e764b5cb95e, 2026-05-01T12:00:00Z
# Needs these in the environment: HF_TOKEN
# Left out, being paths where it was measured: HF_HOME
# Image: vLLM's own of the version that was measured, 0.32.0, outside a container.
# Suggested by a model of queueing, not measured, not added: export with --limits: --max-num-queued-reqs 106 --max-num-queued-tokens 3400
set -eu
export HF_TOKEN="${HF_TOKEN?set HF_TOKEN, which the engine needs}"
export NCCL_DEBUG=WARN
exec docker run --rm --stop-timeout 10 \
  --publish "${HOST:-127.0.0.1}:${PORT:-8000}:8000" \
  --gpus "${GPUS:-all}" \
  --volume "${HF_HUB_CACHE:-$HOME/.cache/huggingface/hub}:/autotune/hub" \
  --env HF_HUB_CACHE=/autotune/hub \
  --shm-size 16g \
  --ulimit memlock=-1 \
  --env HF_TOKEN \
  --env NCCL_DEBUG \
  --entrypoint vllm vllm/vllm-openai:v0.32.0 serve meta-llama/Llama-3.1-8B-Instruct \
  --max-model-len 8192 \
  --max-num-seqs 192 \
  --tensor-parallel-size 2 \
  --host 0.0.0.0 \
  --port 8000
