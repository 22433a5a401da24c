"""Scheduled job: recompute and compare tables. Takes the arguments of `tidelake verify`."""

from tidelake.cli.jobs import verify

if __name__ == "__main__":
    verify()
