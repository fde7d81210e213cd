"""The mark: finds the objects that nothing needs any more, says why, and publishes their list."""
