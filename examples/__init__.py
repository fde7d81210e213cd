"""Examples to run in the folder of the project: the demo and a trial."""
