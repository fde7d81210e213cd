"""One small object store interface, with implementations for local files, S3, Azure and GCS."""
