"""`python training/precompute.py …`: the same as `hf-multisource precompute …`."""

from hf_multisource.cli.precompute import main

if __name__ == "__main__":
    main()
