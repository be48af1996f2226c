#!/bin/sh
# Written by autotune; the evidence is in best.json.
# study llama-8b-chat, trial 5, fingerprint a2272e764b5cb95e, 2026-05-01T12:00:00Z
# Needs these in the environment: HF_TOKEN
# Image: the study's image; its digest was not recorded.
# Suggested by a model of queueing, not measured, not added: export with --limits: --max-num-queued-reqs 106 --max-num-queued-tokens 3400
# Left out, naming paths where it was measured: the mount of /kernels, the option --env-file
set -eu
export HF_TOKEN="${HF_TOKEN?set HF_TOKEN, which the engine needs}"
export HF_HOME=/models
exec docker run --rm --stop-timeout 10 \
  --publish "${HOST:-127.0.0.1}:${PORT:-8000}:8000" \
  --gpus "${GPUS:-all}" \
  --shm-size 16g \
  --ulimit memlock=-1 \
  --env HF_TOKEN \
  --env HF_HOME \
  --volume cache:/root/.cache/vllm \
  --cpus 16 \
  --entrypoint vllm registry.example/engine:v1 serve meta-llama/Llama-3.1-8B-Instruct \
  --max-model-len 8192 \
  --max-num-seqs 192 \
  --tensor-parallel-size 2 \
  --host 0.0.0.0 \
  --port 8000
