"""The quality stage: a ready server in, whether it still says what the reference says out.

guarded           a study -> the parameters whose candidates are checked
read_prompts      the shipped prompts or the user's file
ask_reference     server + prompts -> ReferenceAnswers, the engine's own noise in them
ask_candidate     server + ReferenceAnswers -> Answers, asked in the same way
judge             both + limits -> Quality, by a test that knows the engine's noise
"""

from autotune.quality.asking import Unanswered, ask_candidate, ask_reference
from autotune.quality.judging import judge, own_noise
from autotune.quality.prompts import read_prompts
from autotune.quality.scope import guarded, quality_problems

__all__ = [
    "Unanswered",
    "ask_candidate",
    "ask_reference",
    "guarded",
    "judge",
    "own_noise",
    "quality_problems",
    "read_prompts",
]
