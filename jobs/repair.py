"""Job: a new generation of a hop. Takes the arguments of `tidelake repair`."""

from tidelake.cli.jobs import repair

if __name__ == "__main__":
    repair()
