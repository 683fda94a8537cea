"""`python training/results.py …`: the same as `hf-multisource results …`."""

from hf_multisource.cli.results import main

if __name__ == "__main__":
    main()
