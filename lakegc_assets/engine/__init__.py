"""Where the tasks of a run are computed: in this process, on Spark, or through Spark Connect."""
