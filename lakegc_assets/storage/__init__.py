"""One small object store interface, with local files, S3, Azure and GCS behind it."""
