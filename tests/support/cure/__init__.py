"""What a torchvision that does not fit torch needs to be imported at all; for tests only."""
