"""`python -m neutronstream` and the `neutronstream` command: hands over to `experiments/cli.py`."""

import sys


def main() -> None:
    """Runs the command line; the exit code is 0, 2 for a refused input, 130 when interrupted."""
    from .experiments.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
