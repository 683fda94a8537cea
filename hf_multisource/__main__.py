"""Entry point of `python -m hf_multisource` and of the command `hf-multisource`."""

import sys


def main() -> None:
    """Run the command, or exit with a message that names the missing packages.

    Raises:
        SystemExit: If the packages of the extra `train` are not installed.
    """
    try:
        from hf_multisource.cli.app import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "hf_multisource":
            raise
        needed = 'the command needs more packages: run pip install ".[train]" in a clone of the repository'
        sys.exit(f"hf-multisource: {error}; {needed}")
    except KeyboardInterrupt:  # the imports take seconds
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
