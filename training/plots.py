"""`python training/plots.py …`: the same as `hf-multisource plot …`."""

from hf_multisource.cli.plot import main

if __name__ == "__main__":
    main()
