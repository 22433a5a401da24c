"""Scheduled job: open alerts of a pipeline. Takes the arguments of `tidelake alerts`."""

from tidelake.cli.jobs import alerts

if __name__ == "__main__":
    alerts()
