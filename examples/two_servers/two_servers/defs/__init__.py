"""A component for each server."""
