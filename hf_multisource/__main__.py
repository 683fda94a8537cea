"""`python -m hf_multisource`: the same as the command `hf-multisource`."""

from hf_multisource.cli.app import main

if __name__ == "__main__":
    main()
