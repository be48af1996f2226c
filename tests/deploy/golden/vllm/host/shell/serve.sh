#!/bin/sh
# Written by autotune; the evidence is in best.json.
# study llama-8b-chat, trial 5, fingerprint a2272e764b5cb95e, 2026-05-01T12:00:00Z
# Needs these in the environment: HF_TOKEN
# Left out, being paths where it was measured: HF_HOME
# Suggested by a model of queueing, not measured, not added: export with --limits: --max-num-queued-reqs 106 --max-num-queued-tokens 3400
set -eu
export HF_TOKEN="${HF_TOKEN?set HF_TOKEN, which the engine needs}"
export NCCL_DEBUG=WARN
exec vllm serve meta-llama/Llama-3.1-8B-Instruct \
  --max-model-len 8192 \
  --max-num-seqs 192 \
  --tensor-parallel-size 2 \
  --host "${HOST:-127.0.0.1}" \
  --port "${PORT:-8000}"
