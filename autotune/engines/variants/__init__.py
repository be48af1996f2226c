"""Prepared checkpoints: a study's variant in, the folder that an engine loads out.

recipe      what a variant is made from, and the digest that names it in the cache
cache       where it lies, whole or being made; one maker at a time
making      the command under a keeper
whole       whether what it left can be loaded
diagnosis   why a command failed
preparing   all of it, for one variant
listing     which variants there are, for `autotune check`
problems    what is wrong with a study's variants
"""

from autotune.engines.variants.listing import VariantState, missing_room, variant_states
from autotune.engines.variants.preparing import Preparation, prepare_variant
from autotune.engines.variants.problems import variant_problems
from autotune.engines.variants.recipe import variant_digest

__all__ = [
    "Preparation",
    "VariantState",
    "missing_room",
    "prepare_variant",
    "variant_digest",
    "variant_problems",
    "variant_states",
]
