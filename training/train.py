"""`python training/train.py …`: the same as `hf-multisource train …`."""

from hf_multisource.cli.train import main

if __name__ == "__main__":
    main()
