"""What this package overrides and reads of Transformers and PyTorch that is private: any release may change it.

A failure here names what a new release has changed, and the place in the package that relied on it. Look at that place,
then bring the table up to date.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import (
    AutoModel,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    Seq2SeqTrainer,
    Trainer,
    TrainingArguments,
)
from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2PreTrainedModel

import hf_multisource

PACKAGE = Path(hf_multisource.__file__).parent
FOREIGN = ("transformers", "torch", "datasets", "peft")
NOT_IMPORTED = ("__main__", "translation_score")  # these start something, or are loaded by `evaluate`
TABLE_OF = Version("5.23")  # the release whose parameters stand here; earlier ones may have fewer

# Private method of Transformers that is overridden -> its parameters.
OVERRIDDEN = {
    "GenerationMixin._beam_search": (
        "self input_ids logits_processor stopping_criteria generation_config synced_gpus model_kwargs"
    ),
    "GenerationMixin._expand_inputs_for_generation": "self expand_size is_encoder_decoder input_ids model_kwargs",
    "GenerationMixin._prepare_cache_for_generation": (
        "self generation_config model_kwargs generation_mode batch_size max_cache_length"
    ),
    "GenerationMixin._prepare_generation_config": "self generation_config kwargs",
    "GenerationMixin._prepare_model_inputs": "self inputs bos_token_id model_kwargs",
    "GenerationMixin._sample": (
        "self input_ids logits_processor stopping_criteria generation_config synced_gpus streamer model_kwargs"
    ),
    "GenerationMixin._update_model_kwargs_for_generation": (
        "self outputs model_kwargs is_encoder_decoder num_new_tokens"
    ),
    "GenerationMixin._validate_generation_mode": "self generation_mode generation_config generation_mode_kwargs",
    "GenerationMixin._validate_model_kwargs": "self model_kwargs",
    "Pipeline._forward": "self input_tensors forward_parameters",
    "Pipeline._sanitize_parameters": "self pipeline_parameters",
    "PreTrainedModel._init_weights": "self module",
    "ProcessorMixin._get_arguments_from_pretrained": "cls pretrained_model_name_or_path processor_dict kwargs",
    "PushToHubMixin._upload_modified_files": (
        "self working_dir repo_id files_timestamps commit_message token create_pr revision commit_description"
    ),
    "Trainer._get_eval_sampler": "self eval_dataset",
    "Trainer._get_num_items_in_batch": "self batch_samples device",
    "Trainer._get_output_dir": "self trial",
    "Trainer._get_train_sampler": "self train_dataset",
    "Trainer._issue_warnings_after_load": "self load_result",
    "Trainer._load_best_model": "self",
    "Trainer._push_from_checkpoint": "self checkpoint_folder",
    "Trainer._save": "self output_dir state_dict",
    "Trainer._save_checkpoint": "self model trial",
    "Trainer._set_signature_columns_if_needed": "self",
}
# Private name that is read -> what has it. Attributes that are set in `__init__` are looked for in its source.
READ: dict[str, Any] = {
    "_VALID_DICT_FIELDS": TrainingArguments,
    "_attn_implementation": PreTrainedConfig(),
    "_attn_implementation_internal": PreTrainedConfig(),
    "_buffers": torch.nn.Module(),
    "_compiled_call_impl": torch.nn.Module(),
    "_created_lr_scheduler": Trainer.__init__,
    "_eos_token_tensor": GenerationMixin._prepare_special_tokens,
    "_forward_hooks": torch.nn.Module(),
    "_forward_pre_hooks": torch.nn.Module(),
    "_from_model_config": GenerationConfig(),
    "_gen_kwargs": Seq2SeqTrainer.evaluate,
    "_get_collator_with_removed_columns": Trainer,
    "_get_feature_vector_attention_mask": Wav2Vec2PreTrainedModel,
    "_has_any_global_hook": torch.nn.modules.module,
    "_has_unfinished_sequences": GenerationMixin,
    "_is_hf_initialized": PreTrainedModel._initialize_weights,
    "_linear_pointwise": torch.ops.mkldnn,
    "_load_from_checkpoint": Trainer,
    "_model_mapping": AutoModel,
    "_name_or_path": PreTrainedConfig(),
    "_no_split_modules": PreTrainedModel,
    "_pad_token_tensor": GenerationMixin._prepare_special_tokens,
    "_parameters": torch.nn.Module(),
    "_prefill": GenerationMixin,
    "_reorder_linear_weight": torch.ops.mkldnn,
    "_signature_columns": Trainer.__init__,
    "_tied_weights_keys": PreTrainedModel,
    "_version": torch.zeros(1),
}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def overrides() -> Iterator[tuple[str, str, Any, Any]]:
    """Private methods of other packages' classes that ours override: their name, the place, theirs, ours."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "hf_multisource."):
        if module.name.endswith(NOT_IMPORTED):
            continue
        for kind in vars(importlib.import_module(module.name)).values():
            if not inspect.isclass(kind) or kind.__module__ != module.name:
                continue
            for name, ours in vars(kind).items():
                base = next((base for base in kind.__mro__[1:] if name in vars(base)), object)
                if (
                    private(name)
                    and base.__module__.split(".")[0] in FOREIGN
                    and inspect.isroutine(getattr(base, name))
                ):
                    place = f"{module.name}.{kind.__name__}.{name}"
                    yield f"{base.__name__}.{name}", place, vars(base)[name], ours


def parameters(method: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(method, "__func__", method)).parameters)


def foreign_names_read() -> set[str]:
    """Private names that the package reads and does not define."""
    read: set[str] = set()
    defined: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                defined |= {target.id for target in targets if isinstance(target, ast.Name)}
            if isinstance(node, ast.Attribute):
                own = isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") == "self"
                (defined if own else read).add(node.attr)
    return {name for name in read - defined if private(name)}


def test_overridden_private_methods_take_what_transformers_gives() -> None:
    for name, place, theirs, ours in overrides():
        own = parameters(ours)
        kinds = {parameter.kind for parameter in own.values()}
        for parameter in parameters(theirs).values():
            named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            taken = parameter.name in own or parameter.VAR_KEYWORD in kinds
            assert taken or not named, f"{name} has a parameter {parameter.name}, which {place} does not take"


@pytest.mark.skipif(Version(transformers.__version__) < TABLE_OF, reason="an earlier release may have fewer parameters")
def test_overridden_private_methods_are_those_that_were_read() -> None:
    found = {name: (" ".join(parameters(theirs)), place) for name, place, theirs, _ in overrides()}
    for name, (now, place) in found.items():
        assert OVERRIDDEN.get(name) == now, f"Transformers {transformers.__version__}: see {place}"
    assert set(OVERRIDDEN) == set(found)


def test_private_names_that_are_read_exist() -> None:
    assert foreign_names_read() - {name.rpartition(".")[2] for name in OVERRIDDEN} <= set(READ)
    for name, owner in READ.items():
        known = name in inspect.getsource(owner) if inspect.isfunction(owner) else hasattr(owner, name)
        assert known, f"{owner} has no {name} in torch {torch.__version__}, transformers {transformers.__version__}"
