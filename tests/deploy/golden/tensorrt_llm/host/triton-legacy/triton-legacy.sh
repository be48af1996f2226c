#!/bin/sh
# Written by autotune; the evidence is in best.json.
# study llama-8b-chat, trial 5, fingerprint f002cba362e95691, 2026-05-01T12:00:00Z
# Needs these in the environment: HF_TOKEN
# Left out, being paths where it was measured: HF_HOME
# The PyTorch backend was measured, not this one, which performs otherwise: measure it before you rely on it.
# Convert the checkpoint with tensor_parallel_size: 2.
# Without a counterpart here: enable_iter_perf_stats.
set -eu
: "${TRTLLM:?the TensorRT-LLM sources of the release that builds the engine}"
: "${CHECKPOINT:?the converted checkpoint (examples/models/*/convert_checkpoint.py)}"
: "${TOKENIZER:?the folder of the tokenizer}"
REPOSITORY="${REPOSITORY:-triton_repository}"
ENGINE="${ENGINE:-$PWD/engine}"
fill() { python3 "$TRTLLM/triton_backend/tools/fill_template.py" -i "$REPOSITORY/$1/config.pbtxt" "$2"; }
trtllm-build --checkpoint_dir "$CHECKPOINT" --output_dir "$ENGINE" --max_batch_size 256 --max_seq_len 8192
cp -R "$TRTLLM/triton_backend/all_models/inflight_batcher_llm" "$REPOSITORY"
fill preprocessing tokenizer_dir:"$TOKENIZER",triton_max_batch_size:256,preprocessing_instance_count:1
fill postprocessing tokenizer_dir:"$TOKENIZER",triton_max_batch_size:256,postprocessing_instance_count:1
fill ensemble triton_max_batch_size:256,logits_datatype:TYPE_FP32
fill tensorrt_llm_bls triton_max_batch_size:256,decoupled_mode:True,bls_instance_count:1,accumulate_tokens:False,logits_datatype:TYPE_FP32,prompt_embedding_table_data_type:TYPE_FP16
fill tensorrt_llm triton_backend:tensorrtllm,triton_max_batch_size:256,decoupled_mode:True,max_beam_width:1,batching_strategy:inflight_fused_batching,max_queue_delay_microseconds:0,encoder_input_features_data_type:TYPE_FP16,exclude_input_in_output:True,kv_cache_free_gpu_mem_fraction:0.85,enable_kv_cache_reuse:true,enable_chunked_context:true,batch_scheduler_policy:max_utilization,engine_dir:"$ENGINE",logits_datatype:TYPE_FP32,prompt_embedding_table_data_type:TYPE_FP16
