"""One small object store interface, with local files and S3 behind it."""
