"""`python training/translate.py …`: the same as `hf-multisource translate …`."""

from hf_multisource.cli.translate import main

if __name__ == "__main__":
    main()
