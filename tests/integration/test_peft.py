import logging
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftConfig, PeftModel, PrefixTuningConfig, TaskType, get_peft_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import Seq2SeqTrainingArguments
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils.logging import warning_once as warn_once

from builders import EVERY_COMBINER, LSTM, one_by_default, three_source_batch, three_source_model
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceTrainer

pytestmark = pytest.mark.pairs

LABELS = torch.tensor([[4, 5, 1], [6, 1, -100], [7, 8, 1], [9, 1, -100], [5, 4, 1]])
TARGETS: dict[str, Any] = {
    "attention": ["q_proj", "v_proj"],  # of encoders, self-attention and combiners alike
    "all": "all-linear",
}
OF_LSTM = ["query_proj", "projection"]  # attention alone: PEFT adapts no LSTM
of_both_families = pytest.mark.parametrize("combiner", [*one_by_default("hierarchical"), LSTM])


def adapted(model: Any, targets: Any) -> Any:
    """A model with LoRA adapters that change what it says."""
    torch.manual_seed(0)
    settings = LoraConfig(task_type=TaskType.SEQ_2_SEQ_LM, r=2, lora_alpha=4, target_modules=targets)
    return get_peft_model(model, settings)


def train(model: Any, folder: Path) -> list[float]:
    """Three updates on the five examples, some of which lack a source; returns the losses."""
    rows = [{key: value[i] for key, value in {**three_source_batch(), "labels": LABELS}.items()} for i in range(5)]
    arguments = Seq2SeqTrainingArguments(
        str(folder), use_cpu=True, max_steps=3, learning_rate=0.05, logging_steps=1, save_strategy="no",
        disable_tqdm=True, per_device_train_batch_size=5, remove_unused_columns=False,
    )  # fmt: skip
    trainer = MultiSourceTrainer(model, arguments, train_dataset=rows, data_collator=torch.utils.data.default_collate)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        result: Tensor = model.eval()(**three_source_batch(), labels=LABELS).logits
    return result


def translate(model: Any, num_beams: int) -> Tensor:
    ids: Tensor = model.eval().generate(**three_source_batch(), num_beams=num_beams, max_new_tokens=6)
    return ids


@pytest.mark.feature("Training", "PEFT LoRA: train")
@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("combiner", EVERY_COMBINER)
def test_only_the_adapters_learn(combiner: str, targets: str, tmp_path: Path) -> None:
    model = adapted(three_source_model(combiner), TARGETS[targets])
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    losses = train(model, tmp_path)
    assert losses[-1] < losses[0]
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(before[name], parameter)}
    assert moved <= {name for name in before if ".lora_" in name}
    for part in (
        "encoder.sources.en",
        "encoder.sources.fr",
        "decoder.layers.1.self_attn",
        "decoder.layers.1.cross_attn",
    ):
        assert any(part in name for name in moved), part


@pytest.mark.feature("Training", "PEFT LoRA: save, load, merge and generate")
@pytest.mark.parametrize("num_beams", [1, 4])
@of_both_families
def test_loaded_and_merged_adapters_say_what_the_trained_ones_say(
    combiner: str, num_beams: int, tmp_path: Path
) -> None:
    model = adapted(three_source_model(combiner), OF_LSTM if combiner == LSTM else TARGETS["attention"])
    train(model, tmp_path)
    expected, translation = logits(model), translate(model, num_beams)
    base = logits(three_source_model(combiner))
    assert (expected - base).abs().max() > 0.1, "the adapters do something"
    model.save_pretrained(tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "model.safetensors").exists(), "the adapters alone are saved"
    loaded = PeftModel.from_pretrained(three_source_model(combiner), tmp_path / "adapter")
    torch.testing.assert_close(logits(loaded), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(translate(loaded, num_beams), translation)
    merged = loaded.merge_and_unload()
    assert type(merged) is type(three_source_model(combiner))
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=2e-4)
    assert torch.equal(translate(merged, num_beams), translation)
    merged.save_pretrained(tmp_path / "merged")
    alone: Any = type(merged).from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(alone), expected, rtol=1e-4, atol=2e-4)


@pytest.mark.feature("Training", "PEFT LoRA: save, load, merge and generate")
@pytest.mark.parametrize("num_beams", [1, 4])
@of_both_families
def test_an_adapters_folder_is_loaded_like_a_models(combiner: str, num_beams: int, tmp_path: Path) -> None:
    three_source_model(combiner).save_pretrained(tmp_path / "base")
    kind = type(three_source_model(combiner))
    model = adapted(kind.from_pretrained(tmp_path / "base"), OF_LSTM if combiner == LSTM else TARGETS["attention"])
    train(model, tmp_path)
    model.save_pretrained(tmp_path / "adapter")
    loaded = kind.from_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-4, atol=1e-4)
    assert torch.equal(translate(loaded, num_beams), translate(model, num_beams))
    added: Any = three_source_model(combiner)
    added.load_adapter(str(tmp_path / "adapter"))
    torch.testing.assert_close(logits(added), logits(model), rtol=1e-4, atol=1e-4)


@pytest.mark.feature("Hub", "No pickle is ever loaded")
def test_an_adapter_in_a_pickle_is_refused(tmp_path: Path) -> None:
    three_source_model().save_pretrained(tmp_path / "base")
    base = MultiSourceForConditionalGeneration.from_pretrained(tmp_path / "base")
    folder = tmp_path / "adapter"
    adapted(base, TARGETS["attention"]).save_pretrained(folder, safe_serialization=True)
    weights = load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    torch.save(weights, folder / "adapter_model.bin")
    with pytest.raises(OSError, match=r"adapter_model\.safetensors"):
        MultiSourceForConditionalGeneration.from_pretrained(folder)
    with pytest.raises(OSError, match=r"adapter_model\.safetensors"):
        three_source_model().load_adapter(str(folder))


@pytest.mark.feature("Hub", "No pickle is ever loaded")
def test_an_adapter_is_not_loaded_from_the_pickle_beside_it_either(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    adapted(three_source_model(), TARGETS["attention"]).save_pretrained(folder)
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    with pytest.raises(ValueError, match="use_safetensors must not be False"):
        three_source_model().load_adapter(str(folder), use_safetensors=False)
    with pytest.raises(ValueError, match="use_safetensors must not be False"):
        three_source_model().load_adapter(load_config=LoadStateDictConfig(str(folder), use_safetensors=False))
    (folder / "adapter_model.safetensors").unlink()
    for place in ({"load_config": LoadStateDictConfig(str(folder))}, {"pretrained_model_name_or_path": str(folder)}):
        with pytest.raises(OSError, match=r"adapter_model\.safetensors"):
            three_source_model().load_adapter(**place)


def cache_of_adapters(home: Path, adapters: dict[str, Path]) -> Path:
    """A cache as huggingface_hub leaves it, of the repository org/adapter: revision -> folder."""
    repository = home / "models--org--adapter"
    (repository / "refs").mkdir(parents=True)
    for number, (revision, folder) in enumerate(adapters.items()):
        commit = f"{number:040x}"
        (repository / "refs" / revision).write_text(commit)
        shutil.copytree(folder, repository / "snapshots" / commit)
    return home


@pytest.mark.parametrize("way", ["plain", "adapter_kwargs", "download_kwargs"])
@pytest.mark.parametrize("with_config", [False, True])
def test_an_adapter_is_looked_for_where_the_caller_says(
    with_config: bool, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {}
    for revision in ("main", "second"):
        model = adapted(three_source_model(), TARGETS["attention"])
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                torch.nn.init.normal_(parameter, std=0.5 if revision == "main" else 1.0)
        model.save_pretrained(tmp_path / revision / "part")
        expected[revision] = logits(model)
    cache = cache_of_adapters(tmp_path / "cache", {name: tmp_path / name for name in expected})
    asked: list[Any] = []
    monkeypatch.setattr("socket.socket.connect", lambda self, address: asked.append(address))
    for revision in expected:
        where = {"cache_dir": cache, "revision": revision, "subfolder": "part", "local_files_only": True, "token": "x"}
        model = three_source_model()
        config = {"peft_config": PeftConfig.from_pretrained(str(tmp_path / revision / "part"))} if with_config else {}
        model.load_adapter("org/adapter", **config, **(where if way == "plain" else {way: where}))
        torch.testing.assert_close(logits(model), expected[revision], rtol=1e-4, atol=1e-4)
    assert asked == [], "local_files_only asks nobody"


@pytest.mark.parametrize("num_beams", [1, 3])
def test_each_example_may_have_an_adapter_of_its_own(num_beams: int) -> None:
    """PEFT looks at a row of the queries for each name, which it repeats for the beams."""
    targets = r".*decoder\.layers\.\d+\.self_attn\.(q_proj|v_proj)"
    model = adapted(three_source_model("flat"), targets)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=2.0)
    plain = three_source_model("flat").generate(**three_source_batch(), num_beams=num_beams, max_new_tokens=6)
    changed = translate(model, num_beams)
    assert not torch.equal(plain, changed)
    names = ["__base__", "default", "default", "__base__", "default"]
    found = model.generate(**three_source_batch(), num_beams=num_beams, max_new_tokens=6, adapter_names=names)
    for i, name in enumerate(names):
        assert found[i].tolist() == (plain if name == "__base__" else changed)[i].tolist()


def test_prefix_tuning_finds_the_beams_of_the_loop_of_transformers() -> None:
    """Examples end after different numbers of tokens, while the cache of PEFT holds a row for each beam."""
    model = three_source_model("flat", norm_position="pre")
    layers = model.config.decoder_layers
    settings = PrefixTuningConfig(task_type=TaskType.SEQ_2_SEQ_LM, num_virtual_tokens=4, num_layers=layers)
    tuned: Any = get_peft_model(model, settings).eval()
    ends = [*range(2, model.config.vocab_size, 3)]
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12, "eos_token_id": ends}
    found = tuned.generate(**three_source_batch(), **options)
    expected = tuned.generate(**three_source_batch(), **options, fold_beams=False)
    assert torch.equal(found, expected)
    first = torch.isin(found[:, 1:], torch.tensor(ends)).int().argmax(dim=1)
    assert len({*first.tolist()}) > 1, "no example ends before the others"


@pytest.mark.parametrize("kept", [None, ["gate"]])
def test_gates_that_adapters_freeze_at_0_are_told_and_can_be_trained(
    kept: list[str] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = three_source_model("gated_serial")
    for name, parameter in model.named_parameters():
        if ".gate." in name:
            torch.nn.init.zeros_(parameter)  # as a source that has just been added
    settings = LoraConfig(
        task_type=TaskType.SEQ_2_SEQ_LM, r=2, lora_alpha=4, target_modules="all-linear", modules_to_save=kept
    )
    peft_model: Any = get_peft_model(model, settings)
    logger = logging.getLogger("hf_multisource.combiners")
    warn_once.cache_clear()
    logger.addHandler(caplog.handler)
    train(peft_model, tmp_path)
    logger.removeHandler(caplog.handler)
    gates = [value for name, value in peft_model.named_parameters() if ".gate." in name]
    told = "source 'de' has no effect, and training cannot change that" in caplog.text
    assert told is (kept is None)
    assert any(bool(gate.any()) for gate in gates) is (kept is not None)
    assert not math.isnan(logits(peft_model).sum())
