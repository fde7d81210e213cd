"""An S3 gateway: repositories are buckets, and keys are ``<branch or other reference>/<path>``."""

from lakegc_assets.embedded.gateway.app import Gateway

__all__ = ["Gateway"]
