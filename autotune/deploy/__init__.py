"""What pipelines consume: files that deploy the measured configuration."""
