"""A study as YAML that reads back as the same study."""

from __future__ import annotations

import re

import yaml

from autotune.records.spec import StudySpec
from autotune.study.shape import study_data


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, and quotes text that our reader (YAML 1.2) or others (YAML 1.1) take for something else."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


_Dumper.add_implicit_resolver(
    "tag:autotune:quoted",  # a tag that no value has: plain text of this look is never written plain
    re.compile(r"[-+]?[.0-9][0-9.]*([eE][-+]?[0-9]+)?\Z|0[ox][0-9a-fA-F]+\Z|[-+]?0[0-9]+\Z"),
    list("-+.0123456789"),
)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Write text with unusual characters in double quotes, where they are escaped: PyYAML folds some line breaks."""
    plain = all(char.isprintable() or char == "\n" for char in text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def dump_study(spec: StudySpec) -> str:
    """Return the resolved study as YAML, all references inline: `load_study` reads an equal study from it."""
    return yaml.dump(study_data(spec), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
