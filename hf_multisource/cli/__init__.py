"""The command `hf-multisource`: one module for each subcommand, each of them thin."""
