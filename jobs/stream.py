"""Scheduled job: all hops, continuously until stopped. Takes the arguments of `tidelake run`."""

from tidelake.cli.jobs import stream

if __name__ == "__main__":
    stream()
