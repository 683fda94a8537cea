"""Facts about the machine and the software that a result was made with."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def hardware(device: torch.device | str | None = None) -> str:
    """A device in words; None: the one that is used where nothing else is said."""
    if torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
