"""Describe the hardware and software with which a result was made."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def find_device(name: str | None) -> torch.device:
    """Return the torch device to use.

    Args:
        name: Such as "cpu" or "cuda:0"; None: the GPU if there is one, otherwise the CPU.

    Returns:
        The device.

    Raises:
        ValueError: If there is no such device.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        allowed = "cpu or cuda" if torch.cuda.is_available() else "cpu"
        raise ValueError(f"device is {name!r}; what PyTorch can use here is {allowed}") from error
    return device


def hardware(device: torch.device | str | None = None) -> str:
    """Return the hardware name of a device; None: the default device of `find_device`."""
    if torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
