"""Scheduled job: silver and gold, judged by the suite. Takes the arguments of `tidelake check`."""

from tidelake.cli.jobs import gate

if __name__ == "__main__":
    gate()
