#!/bin/sh
# Written by autotune; the evidence is in best.json.
# study llama-8b-chat, trial 5, fingerprint f002cba362e95691, 2026-05-01T12:00:00Z
# Needs these in the environment: HF_TOKEN
# Left out, being paths where it was measured: HF_HOME
set -eu
export TRTLLM_NO_USAGE_STATS=1
export HF_TOKEN="${HF_TOKEN?set HF_TOKEN, which the engine needs}"
export NCCL_DEBUG=WARN
exec trtllm-serve serve meta-llama/Llama-3.1-8B-Instruct \
  --host "${HOST:-127.0.0.1}" \
  --port "${PORT:-8000}" \
  --config "$(dirname "$0")/options.yaml"
