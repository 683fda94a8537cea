"""Train on CPU processes that Accelerate takes for GPUs: it divides no model among processes of any other kind.

export ACCELERATE_TORCH_DEVICE=cpu
accelerate launch --config_file training/accelerate/fsdp2.yaml tests/support/fsdp_on_cpu.py ...
"""

from typing import Any

from accelerate.state import PartialState
from accelerate.utils import DistributedType

from hf_multisource.cli.train import main


def backend_of_a_gpu(self: Any, *args: Any, **kwargs: Any) -> tuple[str, DistributedType]:
    return "gloo", DistributedType.MULTI_GPU


if __name__ == "__main__":
    PartialState._prepare_backend = backend_of_a_gpu
    main()
