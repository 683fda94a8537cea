"""`python training/attach_encoder.py …`: the same as `hf-multisource attach …`."""

from hf_multisource.cli.attach import main

if __name__ == "__main__":
    main()
