"""Faster matrix products for training on CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel


def uses_plain_attention(model: torch.nn.Module) -> bool:
    """Return whether all parts of a model use the `eager` attention implementation.

    PyTorch's `sdpa` on CPUs consists of many small products, for which oneDNN has a high overhead per call.

    Args:
        model: The model, which can be wrapped.

    Returns:
        Whether all parts use `eager`.
    """
    configs = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    return all(config._attn_implementation == "eager" for config in configs)


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Compute float32 matrix products on a CPU by oneDNN, unless the user has set a precision.

    By default PyTorch calls its BLAS library, which is MKL in most builds; on CPUs that are not Intel's, oneDNN is
    about twice as fast. PyTorch uses oneDNN only if bfloat16 products are allowed
    (`torch.set_float32_matmul_precision("medium")`). On CPUs with bfloat16 matrix units (AMX), oneDNN rounds inputs to
    bfloat16, as GPUs round to TF32, and accumulates in float32; on other CPUs it computes in float32. A precision set
    by the user is not changed: `torch.set_float32_matmul_precision("highest")` disables this function.

    Args:
        device: Device of the products; the function has no effect on devices other than CPUs.

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
