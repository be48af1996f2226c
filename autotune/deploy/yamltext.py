"""YAML as people read it in a repository: comments first, then documents in the order in which they were made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.deploy.shell import checked


def yaml_file(comments: str, *documents: Mapping[str, Any]) -> str:
    """Return documents as one file below comment lines. Raises InputError for text that no file can hold."""
    import yaml  # noqa: PLC0415 - only writing files needs it

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, _data: Any) -> bool:  # noqa: ANN401 - whatever is dumped
            return True

    Dumper.add_representer(str, _text)
    parts = (yaml.dump(document, Dumper=Dumper, sort_keys=False, width=110) for document in documents)
    return checked(comments + "---\n".join(parts))


def _text(dumper: Any, text: str) -> Any:  # noqa: ANN401 - pyyaml's types are not exported
    """Several lines as they are, where YAML can hold them so."""
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
