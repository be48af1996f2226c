"""What pipelines consume: files that deploy the measured configuration.

`deployment` is what an exporter is given, `formats` has one module a format, `exporters` finds them (and those of other
distributions), `files` writes `best/`, `command` is `autotune export`. What several formats share: `inside` (command),
`environment`, `image`, `timing`, `limits`, `containers`, `pod`, and texts in `shell` and `yamltext`.
"""

from autotune.deploy.command import export_run
from autotune.deploy.deployment import Asked, Deployment, make_deployment, read_deployment
from autotune.deploy.evidence import BestFile, best_schema
from autotune.deploy.exporters import Exporter, described, exporter
from autotune.deploy.files import write_best

__all__ = [
    "Asked",
    "BestFile",
    "Deployment",
    "Exporter",
    "best_schema",
    "described",
    "export_run",
    "exporter",
    "make_deployment",
    "read_deployment",
    "write_best",
]
