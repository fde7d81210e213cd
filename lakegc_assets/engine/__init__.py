"""Engines that compute relations and tasks: embedded, Spark, or Spark Connect."""
