"""Let torchvision be imported where its compiled part does not fit torch: Python runs this wherever it starts.

timm needs torchvision, and pip may give a build of it that belongs to another build of torch (CUDA beside CPU).
torchvision then has no operators, and dies as it gives two of them a shape rule; so does most of Transformers, which
asks only whether torchvision is installed. Here these two are declared, if they are not there: nothing computes them,
nothing tested here needs them. A torchvision that fits has declared them by then, and is left alone.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any

RULES = "torchvision._meta_registrations"  # imported after the compiled part
OPERATORS = ("nms", "qnms")


class DeclareOperators(importlib.abc.MetaPathFinder):
    """Finds nothing; declares torchvision's operators before the module that wants them is looked for."""

    library: Any = None  # the declaration lives as long as this does

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Declare, if it is time and need.

        Args:
            name: The module that is about to be imported.
            path: Unused.
            target: Unused.
        """
        if name != RULES or self.library is not None:
            return
        import torch

        if not hasattr(torch.ops.torchvision, "nms"):
            type(self).library = library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in OPERATORS:
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, DeclareOperators())
