"""`python training/train_tokenizer.py …`: the same as `hf-multisource tokenizer …`."""

from hf_multisource.cli.tokenizer import main

if __name__ == "__main__":
    main()
