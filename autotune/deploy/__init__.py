"""What pipelines consume: files that deploy the measured configuration."""

from autotune.deploy.evidence import BestFile, best_schema
from autotune.deploy.files import EXPORTERS, Exporter, write_best

__all__ = ["EXPORTERS", "BestFile", "Exporter", "best_schema", "write_best"]
