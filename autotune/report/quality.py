"""What a run tells of the answers of its candidates, in lines."""

from __future__ import annotations

from autotune.records.quality import Quality, QualityFigure, QualityStatus
from autotune.records.trial import TrialRecord
from autotune.report.view import RunView
from autotune.report.words import figure, number_list, plain

_LABELS = {
    "perplexity_ratio": "perplexity",
    "token_agreement": "agreement",
    "length_ratio": "length",
    "repetition_ratio": "loops",
}


def quality_lines(view: RunView) -> list[str]:
    """Return how the answers of the chosen trial compare with the reference's, the engine's own noise, and which trials
    failed; nothing where nothing was asked."""
    checked = [(trial, trial.quality) for trial in view.trials if trial.quality is not None]
    if not checked:
        return []
    chosen = view.best or view.nearest
    lines = [_chosen_line(chosen)] if chosen is not None else []
    lines += [own_text(found) for _, found in checked if found.status is QualityStatus.REFERENCE][:1]
    judged = [found for _, found in checked if found.status is not QualityStatus.REFERENCE]
    failed = [trial.number for trial, found in checked if found.status is QualityStatus.FAILED]
    if judged:
        which = f": trial {number_list(failed)}" if failed else ""
        lines.append(f"Answers checked of {len(judged)} trials, {len(failed)} wrong{which}")
    return lines


def _chosen_line(trial: TrialRecord) -> str:
    found = trial.quality
    if found is None or found.status is QualityStatus.REFERENCE:
        return "Quality not applicable: nothing in it changes the output against the reference"
    return f"Quality {found.status.value}: {quality_text(found)}"


def quality_text(found: Quality) -> str:
    """Return `perplexity 1.003 (limit 1.02), agreement 0.94 (limit 0.5); 24 prompts, by prompt_logprobs`."""
    parts = [", ".join(_figure_text(each) for each in found.figures)] if found.figures else []
    asked = f", by {found.asked_by.value}" if found.asked_by else ""
    parts += [f"{found.prompts} prompts{asked}"] if found.prompts else []
    return plain("; ".join([*parts, *found.notes, *([found.why] if found.why and not found.figures else [])]))


def own_text(found: Quality) -> str:
    """Return what the reference differs from itself by, asked alone and in batches."""
    equal = "" if found.equal_ratio is None else f", {figure(100 * found.equal_ratio)} % of its answers equal"
    own = ", ".join(f"{_LABELS[each.name]} ±{figure(each.noise, 2)}" for each in found.figures)
    return f"The reference against itself: {own}{equal}"


def _figure_text(each: QualityFigure) -> str:
    limit = "" if each.limit is None else f" (limit {figure(each.limit)})"
    return f"{_LABELS[each.name]} {figure(each.value, 4)}{limit}"
