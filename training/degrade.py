"""`python training/degrade.py …`: the same as `hf-multisource degrade …`."""

from hf_multisource.cli.degrade import main

if __name__ == "__main__":
    main()
