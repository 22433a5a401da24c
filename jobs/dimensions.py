"""Scheduled job: the dimensions of a pipeline. Takes the arguments of `tidelake run`."""

from tidelake.cli.jobs import dimensions

if __name__ == "__main__":
    dimensions()
