"""What the package can do, to be run in the folder of the project: the demo and a trial."""
