"""How matrix products are computed in training on CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel


def uses_plain_attention(model: torch.nn.Module) -> bool:
    """Return whether all parts of a model attend by `eager`.

    PyTorch's `sdpa` on CPUs makes many small products, for each of which oneDNN would prepare anew.

    Args:
        model: The model, wrapped as it may be.

    Returns:
        Whether they do.
    """
    configs = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    return all(config._attn_implementation == "eager" for config in configs)


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Let oneDNN compute float32 matrix products on a CPU, unless the user has chosen how they are computed.

    PyTorch leaves them to its BLAS library, which is MKL in most builds; on CPUs that are not Intel's, oneDNN is about
    twice as fast. PyTorch chooses oneDNN only where bfloat16 products are allowed
    (`torch.set_float32_matmul_precision("medium")`). oneDNN rounds to bfloat16 on CPUs with matrix units for it (AMX),
    as GPUs round to TF32, and sums in float32; elsewhere it computes in float32. A precision set by the user stays:
    `torch.set_float32_matmul_precision("highest")` switches this off.

    Args:
        device: Where the products are computed; elsewhere than on a CPU nothing changes.

    Yields:
        Nothing.
    """
    products: Any = getattr(torch.backends.mkldnn, "matmul", None)
    unset = getattr(products, "fp32_precision", None) == "none"
    if device.type != "cpu" or not unset or not torch.backends.mkldnn.is_available():
        yield
        return
    products.fp32_precision = "bf16"
    try:
        yield
    finally:
        products.fp32_precision = "none"
