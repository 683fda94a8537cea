"""The command `hf-multisource`, with one module for each subcommand."""
