"""Scheduled job: expectation suite on silver and gold. Takes the arguments of `tidelake check`."""

from tidelake.cli.jobs import gate

if __name__ == "__main__":
    gate()
