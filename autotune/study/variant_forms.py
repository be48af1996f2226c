"""What a study's variants look like as a file: `variants: {int8: {command: …}}`."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge, Gt, Len
from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from autotune.records.variants import BASE, DEFAULT_TIMEOUT_S, OUTPUT
from autotune.study import checks
from autotune.study.form import REFERENCE, EnvName, Form, Name, Text, text_or

ONLY_OF_COMMANDS = ("inputs", "env", "versions", "needs_disk_gib", "timeout_s", "resumes")


class VariantForm(Form):
    """A checkpoint beside the study's model: another one by its name, or one that a command makes."""

    model: Text | None = Field(None, description="Name on the hub, or a path.")
    command: (
        Annotated[
            Annotated[Text, AfterValidator(checks.splits), Tag(REFERENCE)]
            | Annotated[list[Text], Len(1), Tag("<list>")],
            Discriminator(text_or("<list>")),
        ]
        | None
    ) = Field(
        None, description="What makes it: {model} stands for the study's model, {output} for the folder to write."
    )
    inputs: list[Text] = Field(
        default_factory=list, description="Files or folders whose content counts, beside those that the command names."
    )
    env: Annotated[dict[EnvName, str], AfterValidator(checks.no_secrets)] = Field(
        default_factory=dict, description='Environment of the command; secrets by reference: "${NAME}".'
    )
    versions: dict[Text, Text] = Field(
        default_factory=dict, description="Of tools, by name: with another version the variant is made anew."
    )
    needs_disk_gib: Annotated[float, Ge(0)] | None = Field(
        None, description="GiB that making it takes; the disk is looked at before."
    )
    timeout_s: Annotated[float, Gt(0)] = Field(
        DEFAULT_TIMEOUT_S, description="Seconds until the command counts as failed."
    )
    resumes: bool = Field(False, description="The command can go on in a folder that it left unfinished.")

    @model_validator(mode="after")
    def _consistent(self) -> VariantForm:
        checks.exactly_one("model", self.model, "command", self.command)
        if self.model is not None:
            hint = "remove it, or give a command"
            idle = [key for key in ONLY_OF_COMMANDS if key in self.model_fields_set]
            checks.complain([checks.Fault("has no effect: nothing is made", hint, (key,)) for key in idle])
        return self


def names_are_free(variants: dict[str, Any]) -> dict[str, Any]:
    """No variant is called like the study's own model."""
    checks.complain(
        [checks.Fault(f"{BASE!r} is the study's own model", "give it another name", (BASE,))]
        if BASE in variants
        else []
    )
    return variants


Variants = Annotated[dict[Name, VariantForm], AfterValidator(names_are_free)]

DESCRIPTION = (
    "Checkpoints beside the model, by name: the parameter `checkpoint` chooses one (`base` is the model itself). "
    f"A command that makes one writes to {OUTPUT}."
)
