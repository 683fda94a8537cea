"""Wrong values in recipes and on command lines are refused in one line, before anything is read or built."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from hf_multisource.cli.train import main
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.reading import parse_yaml, read_yaml
from hf_multisource.recipes.recipe import Recipe, load_recipe, parse_overrides

SMALL: dict[str, dict[str, Any]] = {
    "data": {"path": "nowhere", "sources": ["en", "de"], "target": "cs"},
    "model": {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    "training": {"output_dir": "run", "use_cpu": True, "learning_rate": 0.001},
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    return tmp_path / "small.yaml"


def refusal(path: Path | str, *arguments: str) -> str:
    """What the command says, which must be one line; there is no data, and no run is begun."""
    with pytest.raises(SystemExit) as end:
        main([str(path), *arguments])
    message = str(end.value.code)
    assert "\n" not in message and not Path("run").exists()
    return message.removeprefix("hf-multisource train: ")


def overridden(path: Path, *arguments: str) -> Recipe:
    return load_recipe(path, parse_overrides(arguments))


RATE = "training.learning_rate must be a number, above 0 and at most 100; got "
LENGTH = "data.max_length must be a whole number, 2 or more; got "
TRUTH = "true or false (or yes, no, on, off)"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("max_length", "long", LENGTH + "'long'"),
        ("max_length", "40.5", LENGTH + "40.5"),
        ("max_length", "[40]", LENGTH + "[40]"),
        ("max_length", "0", LENGTH + "0"),
        ("max_length", "1", LENGTH + "1"),
        ("max_length", "yes", LENGTH + "'yes'"),
        ("max_length", "true", LENGTH + "true"),
        ("max_length", "null", LENGTH + "null"),
        ("limit", "ten", "data.limit must be a whole number, 1 or more, or null; got 'ten'"),
        ("limit", "0", "data.limit must be a whole number, 1 or more, or null; got 0"),
        (
            "path",
            "5",
            "data.path must be text that is not empty; got 5 "
            """(write text that looks like a number in quotes: "'5'")""",
        ),
        ("path", "a: b", "data.path must be text that is not empty; got {'a': 'b'}"),
        ("path", '""', "data.path must be text that is not empty; got ''"),
        ("output_dir", '""', "training.output_dir must be text that is not empty; got ''"),
        ("max_length", "12:30", LENGTH + "'12:30'"),
        ("max_length", "0x10", LENGTH + "'0x10'"),
        ("max_length", "1_000", LENGTH + "'1_000'"),
        ("lr_scheduler_kwargs", "notjson", "training.lr_scheduler_kwargs must be a mapping or null; got 'notjson'"),
        (
            "source_learning_rates",
            "{xx: 1.0}",
            "training.source_learning_rates: unknown source 'xx'; the sources are en, de",
        ),
        (
            "resume_from_checkpoint",
            "there",
            "'resume_from_checkpoint' is not a key of a recipe: --resume continues the run in training.output_dir",
        ),
        ("hub_token", "short", "'hub_token' is a secret, and recipes are saved and published: log in with `hf auth"),
        ("hub_model_id", "org/x", "'hub_model_id' is not a key of a recipe: `hf-multisource push` publishes a run"),
        ("lr", "1e-3", "'lr' is not a key of a recipe: write learning_rate"),
        ("group_by_length", "true", "'group_by_length' is not a key of a recipe: write train_sampling_strategy"),
        ("neftune_noise_alpha", "-1", "training.neftune_noise_alpha must be a number, 0 or more, or null; got -1"),
        ("sources", "en,de", "data.sources: "),
        ("do_train", "no", "'do_train' is not a key of a recipe: training sets it, or does not use it"),
        ("sources", "5", "data.sources must be a list of names; got 5"),
        ("sources", "[]", "data.sources must be a list of names; got []"),
        ("sources", "[en, 5]", "data.sources must be a list of names; got ['en', 5]"),
        ("kind", "bpee", "tokenizer.kind must be one of bpe, wordpiece, unigram, symbols; got 'bpee'"),
        ("unreadable", "skip", "data.unreadable must be one of error, absent; got 'skip'"),
        ("tokenizer.vocab_size", "4k", "tokenizer.vocab_size must be a whole number, 1 or more; got '4k'"),
        ("concatenate", "perhaps", f"data.concatenate must be {TRUTH}; got 'perhaps'"),
        ("bf16", "1", f"training.bf16 must be {TRUTH}; got 1"),
        ("attention_bias", "none", f"model.attention_bias must be {TRUTH}; got 'none'"),
        ("learning_rate", "abc", RATE + "'abc'"),
        ("learning_rate", '"0.002"', RATE + "'0.002' (write a number without quotes)"),
        ("learning_rate", "0,002", RATE + "'0,002' (write the decimal point as a point: 0.002)"),
        ("learning_rate", ".nan", RATE + "'.nan'"),
        ("learning_rate", "1e6", RATE + "1000000.0"),
        ("learning_rate", "0", RATE + "0"),
        ("learning_rate", "-1e-3", RATE + "-0.001"),
        ("learning_rate", "[1, 2]", RATE + "[1, 2]"),
        ("max_steps", "six", "training.max_steps must be a whole number, 1 or more, or -1 for no limit; got 'six'"),
        ("max_steps", "0", "training.max_steps must be a whole number, 1 or more, or -1 for no limit; got 0"),
        ("warmup_steps", "lots", "training.warmup_steps must be a number, 0 or more; got 'lots'"),
        ("noam_scale", "two", "training.noam_scale must be a number, above 0, or null; got 'two'"),
        (
            "seed",
            "4294967296",
            "training.seed must be a whole number, 0 or more and at most 4294967295; got 4294967296",
        ),
        ("patience", "0", "training.patience must be a whole number, 1 or more, or null; got 0"),
        ("source_learning_rates", "{en: slow}", "training.source_learning_rates must be a mapping of texts to numbers"),
        ("eval_strategy", "often", "training.eval_strategy must be one of no, steps, epoch; got 'often'"),
        ("lr_scheduler_type", "cosin", "training.lr_scheduler_type must be one of linear, cosine, "),
        ("log_level", "loud", "training.log_level must be one of detail, debug, "),
        (
            "train_sampling_strategy",
            "by_length",
            "training.train_sampling_strategy must be one of random, sequential, ",
        ),
        (
            "metric_for_best_model",
            "comet",
            f"training.metric_for_best_model must be one of loss, {', '.join(METRICS)}, eval_loss, "
            f"eval_{', eval_'.join(METRICS)}, or null; got 'comet'",
        ),
        ("combiner", "serail", "model.combiner must be one of serial, parallel, "),
        ("combiner", "[", "--combiner [: not YAML: "),
        ("combiner", "{a: 1, a: 2}", "--combiner {a: 1, a: 2}: a is given twice, in lines 1 and 1; give it once"),
        ("d_model", "wide", "model.d_model must be a whole number; got 'wide'"),
        ("d_model", "15", "model.decoder_attention_heads must divide d_model=15; got 2."),
        ("d_model", "0", "model.d_model must be at least 1; got 0."),
        ("decoder_layers", "2.5", "model.decoder_layers must be a whole number; got 2.5"),
        ("dropout", "1.5", "model.dropout must be in [0, 1); got 1.5."),
        ("dropout", "much", "model.dropout must be a number; got 'much'"),
        ("norm_position", "middle", "model.norm_position must be one of 'pre', 'post'; got 'middle'."),
        ("activation_function", "rellu", "model.activation_function must be one of gelu, "),
        ("model.sources", "[5]", "model.sources[0] must be the name of a source, or a mapping with its name; got 5"),
        ("model.sources", "5", "model.sources[0] must be the name of a source, or a mapping with its name; got 5"),
        ("model.sources", "[{layers: 2}]", "model.sources[0].name is missing; got {'layers': 2}"),
        ("model.sources", "[de, {name: en, layers: two}]", "model.sources[1].layers must be a whole number or null;"),
        ("model.sources", "[{name: en, layer: 2}]", "model.sources[0]: unknown key 'layer'; did you mean layers"),
        ("model.sources", "[{name: en, freeze: often}]", f"model.sources[0].freeze must be {TRUTH}, or null; got"),
        ("model.sources", "[{name: en}, en]", "model.sources[1]: source 'en' is listed twice; give it one entry"),
        ("model.sources", "[{name: en, kind: txt}]", "model.sources[en].kind must be one of 'text', 'features', "),
        ("model.sources", "[{name: en, layers: -1}]", "model.sources[en].layers must be at least 0; got -1."),
        ("model.sources", "[{name: en, encoder: {a: 1}}]", "model.sources[en]: encoder.model_type must be one"),
        ("model.sources", "[{name: en, dropout: 2}]", "model.sources[en].dropout must be in [0, 1); got 2."),
    ],
)
def test_a_wrong_value_is_refused_by_key(key: str, value: str, message: str, small: Path) -> None:
    assert refusal(small, f"--{key}={value}").startswith(message)
    if not message.startswith("--"):
        with pytest.raises(ValueError) as error:
            load_recipe(small, parse_overrides([f"--{key}", value]))
        assert str(error.value).startswith(message)


def test_each_model_that_is_evaluated_is_saved_if_the_best_one_is_loaded(small: Path) -> None:
    best = {"eval_strategy": "steps", "load_best_model_at_end": True, "eval_steps": 2}
    with pytest.raises(ValueError, match=r"training.save_steps is 4 and training.eval_steps 2: .* must be equal"):
        load_recipe(small, {**best, "save_steps": 4}).training_arguments()
    assert load_recipe(small, {**best, "save_steps": 2}).training_arguments().save_steps == 2
    assert load_recipe(small, {**best, "save_steps": 4, "load_best_model_at_end": False}).training_arguments()


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"position_embedding": "learned"}, "source 'en'"),
        ({"sources": [{"name": "de", "position_embedding": "learned"}]}, "source 'de'"),
    ],
)
def test_learned_positions_suffice_for_the_longest_text(changes: dict[str, Any], place: str, small: Path) -> None:
    changes = {f"model.{key}": value for key, value in changes.items()}
    load_recipe(small, {**changes, "data.max_length": 16, "model.max_position_embeddings": 16}).check_positions()
    with pytest.raises(
        ValueError, match=rf"data.max_length is 17, but {place} has 16 learned positions: raise max_pos"
    ):
        load_recipe(small, {**changes, "data.max_length": 17, "model.max_position_embeddings": 16}).check_positions()


@pytest.mark.parametrize("role", ["dev", "test"])
def test_a_held_out_split_is_not_trained_on(role: str, small: Path) -> None:
    assert (
        refusal(small, "--data.train", role)
        == f"data.train is {role}, which is data.{role}: a held-out set cannot be trained on"
    )


@pytest.mark.parametrize(("name", "hint"), [("en-US", "en_US"), ("pt br", "pt_br")])
def test_a_source_needs_a_name_that_its_inputs_can_have(name: str, hint: str, small: Path) -> None:
    message = refusal(small, "--sources", name, "de")
    assert message.startswith(f"data.sources: source name {name!r} must be an identifier: letters, digits and")
    assert message.endswith(f"Rename its files or column, for example to {hint}.")
    assert overridden(small, "--sources", name, "de", "--concatenate", "yes").data.sources == [name, "de"]


@pytest.mark.parametrize(
    ("names", "reason"),
    [(["en", "en"], "occurs twice"), (["labels"], "is reserved"), (["to", "en"], "is an attribute of torch modules")],
)
def test_names_of_sources_are_unique_and_free(names: list[str], reason: str, small: Path) -> None:
    message = refusal(small, "--data.sources", f"[{', '.join(names)}]")
    assert message.startswith(f"data.sources: source name {names[0]!r} {reason}")


@pytest.mark.parametrize(
    ("word", "value"),
    [("no", False), ("off", False), ("No", False), ("false", False), ("yes", True), ("ON", True), ("true", True)],
)
def test_booleans_have_many_spellings_where_the_key_is_one(word: str, value: bool, small: Path) -> None:
    words = ["bf16", "load_best_model_at_end", "concatenate", "separate", "attention_bias", "disable_tqdm"]
    given = overridden(small, *(part for name in words for part in (f"--{name}", word)))
    found = [given.data.concatenate, given.tokenizer.separate, given.model["attention_bias"]]
    found += [given.training[name] for name in ("bf16", "load_best_model_at_end", "disable_tqdm")]
    assert found == [value] * 6
    content = {**SMALL, "training": {**SMALL["training"], "load_best_model_at_end": word}}
    small.write_text(yaml.safe_dump(content).replace(f"'{word}'", word), encoding="utf-8")
    assert load_recipe(small).training["load_best_model_at_end"] is value


def test_no_stays_text_where_the_key_is_text(small: Path) -> None:
    given = overridden(small, "--sources", "no", "on", "--target", "yes", "--eval_strategy", "no")
    assert (given.data.sources, given.data.target, given.training["eval_strategy"]) == (["no", "on"], "yes", "no")


@pytest.mark.parametrize(
    ("arguments", "machine", "capability", "expected"),
    [
        (["--bf16", "no"], "x86_64", "AVX512", False),
        (["--bf16", "yes"], "x86_64", "AVX512", True),
        (["--bf16", "yes"], "arm64", "DEFAULT", True),
        (["--bf16", "yes"], "x86_64", "AVX2", False),
        (["--bf16", "yes"], "AMD64", "DEFAULT", False),
    ],
)
def test_bf16_is_used_where_it_is_wanted_and_no_slower_than_float32(
    small: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], machine: str, capability: str, expected: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    recipe = overridden(small, *arguments)
    assert recipe.training_arguments().bf16 is expected
    assert recipe.emulates_bf16 is (arguments[1] == "yes" and not expected)


def test_whole_numbers_may_have_exponents_and_other_values_stay_as_they_are_written(small: Path) -> None:
    given = overridden(small, "--max_steps", "1e4", "--warmup_steps", "500", "--max_grad_norm", "1")
    assert [repr(given.training[key]) for key in ("max_steps", "warmup_steps", "max_grad_norm")] == [
        "10000",
        "500",
        "1",
    ]


def test_an_entry_of_the_models_sources_may_stand_alone(small: Path) -> None:
    given = overridden(small, "--model.sources", "{name: de, layers: 2, freeze: no}")
    assert given.model["sources"] == [{"name": "de", "layers": 2, "freeze": False}]


def test_a_key_that_is_given_twice_is_refused(small: Path) -> None:
    text = small.read_text(encoding="utf-8")
    small.write_text(text + "  learning_rate: 0.5\n", encoding="utf-8")
    assert refusal(small).startswith(f"{small}: training.learning_rate is given twice, in lines ")
    small.write_text(text + "data:\n  path: elsewhere\n", encoding="utf-8")
    assert refusal(small).startswith(f"{small}: data is given twice, in lines ")
    small.write_text(text, encoding="utf-8")
    assert refusal(small, "--seed", "1", "--seed", "2").startswith("--seed is given twice; give it once")
    assert refusal(small, "--seed", "1", "--training.seed", "2").startswith("training.seed is given twice, as seed and")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", " is empty: a recipe has the sections data, tokenizer, model, training, each with `key: value` lines"),
        (b"# nothing\n", " is empty: a recipe has the sections"),
        ("data: {path: données}".encode("latin-1"), ": not UTF-8 text (byte 18); save it as UTF-8"),
        (b"data: &a [*a]\n", ": data[0] contains itself"),
        (b"data: \x00", ": not YAML: "),
        (b"data: " + b"[" * 9999, ": line 1: more than 32 levels of lists and mappings"),
        (b"\n\n- " + b"- " * 9999, ": line 3: more than 32 levels of lists and mappings"),
        (b"a:\n  b: " + b"1" * 10_000, ": line 2: a whole number of 10000 digits; at most 30 are read"),
        (b"- a\n" * 10_000, ": line 10000: more than 10,000 values, counting those that aliases stand for"),
        (b"#" * 2**18 + b"\n", " has 262,145 bytes; at most 262,144 are read"),
        (b"a: !!bool maybe", ": line 1: 'maybe' is not what its tag tag:yaml.org,2002:bool says"),
        (b"a: !!float ''", ": line 1: '' is not what its tag tag:yaml.org,2002:float says"),
        (b"a: !!timestamp x", ": line 1: 'x' is not what its tag tag:yaml.org,2002:timestamp says"),
        (b"a: !!python/object:os.system {}", ": line 1: unknown tag tag:yaml.org,2002:python/object:os.system"),
        (b"? [a]\n: b", ": line 1: a key must be a text"),
    ],
)
def test_a_damaged_file_is_named(content: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path}{reason}")


def alias_bomb(levels: int) -> str:
    """Lists of aliases of the list before; the last one stands for 9**(levels + 1) values."""
    rows = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}' if i else 'x'] * 9)}]" for i in range(levels + 1)]
    return "\n".join(rows)


@pytest.mark.parametrize("levels", [4, 8, 20])
def test_aliases_may_not_grow_into_more_than_a_recipe_can_hold(levels: int, small: Path) -> None:
    for bomb in (alias_bomb(levels), f"{alias_bomb(levels)}\n? *l{levels}\n: 1"):
        with pytest.raises(ValueError, match="more than 10,000 values, counting those that aliases stand for"):
            parse_yaml(bomb)
    with small.open("a", encoding="utf-8") as file:
        file.write(alias_bomb(levels))
    assert "more than 10,000 values" in refusal(small)
    merged = "\n".join(
        ["m0: &m0 {a: 1}"] + [f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, levels + 1)]
    )
    with pytest.raises(ValueError, match="more than 10,000 values, counting those that aliases stand for"):
        parse_yaml(merged)


def test_aliases_and_merged_mappings_are_read() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]") == {
        "a": {"x": 1},
        "b": {"x": 1, "y": 2},
        "c": [{"x": 1}, {"x": 1}],
    }


@pytest.mark.parametrize("value", ["[" * 9999, "1" * 9999, "{a: " * 9999, "!!bool x"])
def test_a_value_on_the_command_line_has_the_same_bounds(value: str, small: Path) -> None:
    assert refusal(small, "--limit", value).startswith("--limit ")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_recipe_is_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path / "pipe.yaml", Path("/dev/zero")):
        with pytest.raises(OSError, match=f"{path} is not a regular file"):
            read_yaml(path)


def test_a_folder_is_no_recipe_unless_a_shipped_one_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    assert refusal("old") == "old is a folder; a recipe is a YAML file"
    (tmp_path / "old" / "recipe.yaml").touch()
    assert refusal("old").endswith("; did you mean old/recipe.yaml?")
    (tmp_path / "demo").mkdir()
    assert load_recipe("demo").data.target == "cs"


BEST = ["--load_best_model_at_end", "yes", "--save_strategy", "epoch", "--metric_for_best_model", "bleu"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--patience", "3"],
            "training.patience needs training.metric_for_best_model, loss or one of data.metrics",
        ),
        (["--patience", "3", *BEST], "training.load_best_model_at_end requires the save and eval strategy to match"),
        (["--report_to", "wandbb"], "training.report_to is 'wandbb', which is not a tracker, or its"),
        (["--report_to", "mlflow"], "training.report_to is 'mlflow', which is not a tracker, or its"),
        (["--report_to", "[none, mlflow]"], "training.report_to is 'mlflow', which is not a tracker, or its"),
        (["--load", "/nonexistent"], "tokenizer.load must be a folder with a tokenizer (tokenizer.json and tokenizer_"),
        (["--load", "."], "tokenizer.load must be a folder with a tokenizer (tokenizer.json and tokenizer_"),
        (["--bf16", "yes", "--fp16", "yes"], "training: At most one of fp16 and bf16 can be True, but not both"),
        (["--accelerator_config", "{a: 1}"], "training: "),
        (["--accelerator_config", "absent.json"], "training: [Errno 2] No such file or directory: 'absent.json'"),
        (
            ["--halve_after_epoch", "2", "--seed", "1", "--max_steps", "9"],
            "small.yaml: training.halve_after_epoch replaces training.max_steps",
        ),
    ],
)
def test_what_training_lacks_is_named_before_any_work(
    arguments: list[str], message: str, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_multisource.recipes.recipe.get_available_reporting_integrations", lambda: ["tensorboard"])
    assert refusal(small.name, *arguments).startswith(message)


def test_separate_tokenizers_are_there_for_every_source(small: Path) -> None:
    for name in ("target", "en"):
        Path("tokenizers", name).mkdir(parents=True)
        Path("tokenizers", name, "tokenizer_config.json").touch()
    message = "tokenizer.load: tokenizers holds separate tokenizers, but none for source 'de'"
    assert refusal(small, "--load", "tokenizers") == message
    overridden(small, "--load", "tokenizers", "--sources", "en").check_tokenizer_folder()


def test_a_recipe_that_is_only_read_needs_no_tokenizer_and_no_tracker(small: Path) -> None:
    given = overridden(small, "--load", "/nonexistent", "--report_to", "mlflow")
    assert (given.tokenizer.load, given.training["report_to"]) == ("/nonexistent", "mlflow")


def test_a_source_may_wrap_a_checkpoint_that_is_not_here(small: Path) -> None:
    entry = {"name": "de", "kind": "pretrained", "encoder": "/nonexistent", "processor": "/nonexistent"}
    assert load_recipe(small, {"model.sources": [entry]}).model["sources"] == [entry]


def test_frozen_sources_of_separate_vocabularies_are_allowed(small: Path) -> None:
    frozen = {"model.sources": [{"name": "de", "freeze": True}]}
    with pytest.raises(ValueError, match=r"^model.sources\[de\].freeze: its embeddings are the decoder's"):
        load_recipe(small, frozen)
    config = load_recipe(small, {**frozen, "separate": True}).draft_config()
    assert [source.vocab_size for source in config.sources] == [8000, 8000]


# Fast settings are defaults where they hold.


def test_examples_are_grouped_by_length_unless_the_recipe_says_otherwise(small: Path) -> None:
    assert load_recipe(small).training_arguments().train_sampling_strategy == "group_by_length"
    given = overridden(small, "--train_sampling_strategy", "random")
    assert given.training_arguments().train_sampling_strategy == "random"
    assert "train_sampling_strategy" not in load_recipe(small).training


@pytest.mark.parametrize(
    ("arguments", "implementation"),
    [
        ([], "eager"),
        (["--bf16", "yes"], "eager"),
        (["--use_cpu", "no"], "sdpa"),
        (["--bf16", "yes", "--attn_implementation", "sdpa"], "sdpa"),
        (["--attn_implementation", "eager"], "eager"),
    ],
)
def test_training_on_a_cpu_uses_eager_attention_unless_the_recipe_says_otherwise(
    arguments: list[str], implementation: str, small: Path
) -> None:
    from hf_multisource import MultiSourceForConditionalGeneration

    given = overridden(small, *arguments)
    config: Any = given.model_config(500, {})
    with torch.device("meta"):
        model = MultiSourceForConditionalGeneration(config)
    assert model.config._attn_implementation == implementation
    assert ("attn_implementation" in given.model) == ("--attn_implementation" in arguments)


def test_whole_numbers_are_decimal_and_dates_are_text(small: Path) -> None:
    recipe = overridden(small, "--seed", "010", "--path", "2026-01-01")
    assert (recipe.training["seed"], recipe.data.path) == (10, "2026-01-01")


def test_an_option_before_the_recipe_is_refused(small: Path) -> None:
    assert refusal("--seed", "2", str(small)) == "the recipe comes first, before --seed"


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (
            {"metric_for_best_model": "loss", "greater_is_better": True},
            "training.greater_is_better must be false: a smaller loss is better (metric_for_best_model is loss)",
        ),
        (
            {"metric_for_best_model": "bleu", "greater_is_better": False},
            "training.greater_is_better must be true: a larger BLEU is better (metric_for_best_model is bleu)",
        ),
        (
            {"eval_strategy": "no", "save_strategy": "no"},
            "training.load_best_model_at_end needs training.eval_strategy",
        ),
        ({"patience": 2}, "training.patience needs training.metric_for_best_model, loss or one of data.metrics"),
    ],
)
def test_a_best_model_that_would_not_be_the_best_is_refused(
    small: Path, training: dict[str, Any], message: str
) -> None:
    content = {**SMALL, "training": {**SMALL["training"], "load_best_model_at_end": True, "eval_strategy": "steps"}}
    content["training"].update(training)
    small.write_text(yaml.safe_dump(content), encoding="utf-8")
    assert refusal(small).startswith(message)


def test_a_schedule_on_the_command_line_replaces_that_of_the_recipe() -> None:
    noam = load_recipe("multi30k_en_de_fr_cs", {"noam_scale": 2.0})
    assert noam.training["noam_scale"] == 2.0
    assert "learning_rate" not in noam.training
    halved = load_recipe("multi30k_en_de_fr_cs", {"halve_after_epoch": 2, "num_train_epochs": 4})
    assert not {"max_steps", "warmup_steps", "lr_scheduler_type"} & halved.training.keys()


@pytest.mark.parametrize(
    ("recipe", "option", "message"),
    [
        (
            "multi30k_en_de_fr_cs",
            ["--halve_after_epoch", "2"],
            "training.halve_after_epoch replaces training.max_steps",
        ),
        (
            "multi30k_en_de_fr_cs_long",
            ["--learning_rate", "1e-3"],
            "training.noam_scale replaces training.learning_rate",
        ),
        (
            "multi30k_en_de_fr_cs_long",
            ["--lr_scheduler_type", "cosine"],
            "training.noam_scale replaces training.lr_scheduler_type",
        ),
    ],
)
def test_no_default_takes_the_place_of_what_a_recipe_decides(
    recipe: str, option: list[str], message: str, small: Path
) -> None:
    assert f"{message}; give one of them" in refusal(recipe, *option)


def test_a_shipped_recipe_with_its_file_ending_is_recognized(small: Path) -> None:
    assert "did you mean the shipped recipe demo?" in refusal("demo.yaml")


def test_the_error_of_an_option_of_several_lines_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^--x a: 1 a: 2: a is given twice, in lines 1 and 2; give it once$"):
        parse_overrides(["--x", "a: 1\na: 2"])


def test_a_source_whose_name_has_several_lines_is_refused_in_one() -> None:
    changes = {"sources": ["en", "a\nb"], "training.source_learning_rates": {"fr": 1e-4}}
    with pytest.raises(ValueError, match=r"^data\.sources: [^\n]+$"):
        load_recipe("demo", changes)
