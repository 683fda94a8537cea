"""`python training/score.py …`: the same as `hf-multisource score …`."""

from hf_multisource.cli.score import main

if __name__ == "__main__":
    main()
