"""Amazon S3 and its compatible servers."""
