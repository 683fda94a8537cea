"""Model cards and uploads to the Hugging Face Hub."""
