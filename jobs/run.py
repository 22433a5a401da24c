"""Scheduled job: all hops, to the source's end. Takes the arguments of `tidelake run`."""

from tidelake.cli.jobs import run

if __name__ == "__main__":
    run()
