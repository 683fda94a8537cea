"""`python training/push.py …`: the same as `hf-multisource push …`."""

from hf_multisource.cli.push import main

if __name__ == "__main__":
    main()
