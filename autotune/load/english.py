"""English sentences for prompts, made from word lists of our own.

They are grammatical and their words are common, so a tokenizer splits them as it does prose and a model goes on with
likely words. They are no real text: some 250 words and a dozen patterns repeat far more than people do, so drafts that
look words up in the prompt are accepted more often. Where a figure hangs on that, take a dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.random import Generator

# No noun, thing or adjective begins with a vowel (all follow "a"), and every noun and thing takes a plain plural.
_LISTS = """
noun: teacher, garden, river, window, market, bridge, doctor, kitchen, village, station, farmer, machine, painter
noun: winter, harbour, report, student, camera, captain, neighbour, journey, valley, baker, museum, sailor, morning
noun: lantern, soldier, mountain, writer, theatre, carpenter, meadow, notebook, harvest, council, lighthouse, merchant
noun: clock, festival, hospital, newspaper, pianist, school, tower, train, visitor, workshop, gardener, judge, reader
noun: singer, storm, tailor, telescope, traveller, wagon, field, forest, boat, pilot, nurse, clerk, guard
thing: question, map, key, lamp, song, plan, coat, basket, secret, photograph, recipe, rope, parcel, hammer, mirror
thing: blanket, drawing, message, shovel, bottle, candle, ladder, package, book, table, chair, coin, ring, stone, bell
thing: drum, promise, reason, problem, picture, signal, record, model, measure, result, list, price, letter, ticket
adjective: quiet, small, careful, bright, narrow, heavy, young, distant, patient, warm, clever, broken, green, silent
adjective: curious, pale, famous, wooden, gentle, strange, modern, golden, hungry, lonely, proud, rough, simple, sudden
adjective: tired, wide, yellow, busy, calm, dark, deep, fresh, friendly, long, new, short, steady, strong
verb: found, carried, repaired, forgot, followed, measured, painted, described, bought, borrowed, noticed, sold, watched
verb: cleaned, counted, delivered, explained, finished, guarded, ignored, lifted, moved, needed, offered, packed
verb: remembered, showed, studied, tested, used, wanted, wrapped, built, changed, checked, drew, kept, lost
moved: walked, travelled, returned, waited, slept, worked, listened, hurried, stayed, arrived, climbed, laughed, rested
moved: sailed, shouted, smiled, stopped, turned, wandered, whispered, danced, drove, ran, sang, spoke, stood
place: near the bridge, behind the school, in the valley, across the river, at the station, under the tower
place: by the old mill, beside the harbour, along the road, in the crowded market, on the far shore, above the village
place: inside the museum, around the lake, between two hills, at the edge of the forest
time: in the morning, before sunrise, after the storm, every summer, on Tuesday, at noon, during the festival
time: last winter, for three days, once a year, late at night, in early spring, after a long week, since the war
manner: slowly, carefully, quickly, quietly, gladly, suddenly, often, rarely, patiently, together, alone, again
link: because, although, while, before, after, until, when
number: two, three, four, five, seven, nine, twelve, twenty, forty
"""

_PATTERNS = (
    "the {adjective} {noun} {verb} the {thing} {place}.",
    "{time}, the {noun} {moved} {manner} {place}.",
    "a {noun} and a {noun} {verb} {number} {thing}s, {link} the {noun} {moved} {place}.",
    "the {noun} {verb} a {adjective} {thing}, but nobody {verb} it.",
    "why the {noun} {moved} {time} is a {adjective} {thing} that the {noun} never {verb}.",
    "{number} {noun}s {moved} {place}, and the {adjective} {noun} {verb} them {manner}.",
    "the {thing} was {adjective} and {adjective}, so the {noun} {verb} another {thing}.",
    "nobody {moved} {place} {link} the {noun} {verb} the {thing}.",
    "in the {noun} there was a {adjective} {thing}; the {noun} {verb} it {time}.",
    "the {noun}, who {moved} {manner}, {verb} the {thing} of the {adjective} {noun}.",
    "{time} the {noun} {verb} a {thing} for the {noun} {place}.",
    "was it the {adjective} {noun} who {moved} {place}, or the {noun} with the {thing}?",
)


def _words() -> dict[str, tuple[str, ...]]:
    words: dict[str, tuple[str, ...]] = {}
    for line in _LISTS.strip().splitlines():
        kind, _, listed = line.partition(": ")
        words[kind] = (*words.get(kind, ()), *listed.split(", "))
    return words


_WORDS = _words()
_PARTS = tuple(tuple(pattern.replace("}", "{").split("{")) for pattern in _PATTERNS)  # every second one is a kind


def sentences(rng: Generator, chars: int) -> str:
    """Return sentences of at least `chars` characters in all, a new choice of each word."""
    found: list[str] = []
    length = 0
    while length < chars:
        sentence = _sentence(rng)
        found.append(sentence)
        length += len(sentence) + 1
    return " ".join(found)


def _sentence(rng: Generator) -> str:
    parts = _PARTS[int(rng.integers(len(_PARTS)))]
    levels = rng.random(len(parts)).tolist()
    text = "".join(
        _chosen(_WORDS[part], level) if place % 2 else part
        for place, (part, level) in enumerate(zip(parts, levels, strict=True))
    )
    return text[0].upper() + text[1:]


def _chosen(words: tuple[str, ...], level: float) -> str:
    return words[int(level * len(words))]
