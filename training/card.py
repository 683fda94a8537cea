"""`python training/card.py …`: the same as `hf-multisource card …`."""

from hf_multisource.cli.card import main

if __name__ == "__main__":
    main()
