"""The best configuration as one `docker run` line."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.deploy.containers import left_out, run_lines
from autotune.deploy.deployment import Deployment
from autotune.deploy.formats import trtllm_yaml
from autotune.deploy.image import image_of
from autotune.deploy.inside import inside_of
from autotune.deploy.shell import checked, header, limit_words


def export(deployment: Deployment) -> Mapping[str, str]:
    """docker-run.sh: one `docker run` line with a pinned image; HOST, PORT and GPUS are the caller's.

    Raises InputError for what a command line can't carry.
    """
    image = f"Image: {image_of(deployment).why}."
    comments = [image, *limit_words(deployment), *left_out(deployment)]
    lines = ["#!/bin/sh", header(deployment, comments) + "set -eu", *run_lines(deployment)]
    files = trtllm_yaml.export(deployment) if inside_of(deployment).files else {}
    return {"docker-run.sh": checked("\n".join(lines) + "\n"), **files}
