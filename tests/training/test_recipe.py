from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.optim.lr_scheduler import LambdaLR
from transformers import ResNetConfig, get_scheduler

from hf_multisource.recipes.recipe import PRESETS, DataRecipe, Recipe, load_recipe, parse_overrides

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "hf_multisource" / "recipes" / "configs").glob("*.yaml"))
SMALL: dict[str, dict[str, Any]] = {
    "data": {"path": "text", "sources": ["en", "de", "fr"], "target": "cs"},
    "model": {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    "training": {"output_dir": "runs/small", "use_cpu": True, "report_to": "none"},
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write(tmp_path / "small.yaml", SMALL)


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def overridden(path: Path, *arguments: str) -> Recipe:
    return load_recipe(path, parse_overrides(arguments))


def config_of(recipe: Recipe) -> Any:
    return recipe.model_config(500, {}, pad_token_id=0, bos_token_id=2, eos_token_id=1)


def test_there_are_recipes() -> None:
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_recipe_gives_a_model_and_training_arguments(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "hf_multisource.recipes.recipe.encoder_config", lambda checkpoint: ResNetConfig()
    )  # the checkpoints that recipes name are not on this machine
    recipe = load_recipe(path, {"output_dir": str(tmp_path), "use_cpu": True})
    own = dict.fromkeys(recipe.data.model_sources, 400) if recipe.tokenizer.separate else {}
    config = recipe.model_config(500, own, pad_token_id=0, bos_token_id=2, eos_token_id=1)
    assert config.source_names == (["all"] if recipe.data.concatenate else recipe.data.sources)
    assert config.vocab_size == 500
    assert [source.vocab_size for source in config.sources] == [400 if own else None] * len(config.sources)
    for key, value in recipe.model.items():
        if key not in ("preset", "sources", "attn_implementation", "share_encoders"):
            assert getattr(config, key) == value
    arguments = recipe.training_arguments()
    assert arguments.predict_with_generate and not arguments.remove_unused_columns
    assert arguments.output_dir == str(tmp_path)
    for key, value in recipe.training.items():
        if isinstance(value, int | float) and key in (
            "max_steps",
            "warmup_steps",
            "seed",
            "adam_epsilon",
            "adam_beta2",
        ):
            assert getattr(arguments, key) == value
    assert isinstance(arguments.learning_rate, float)


def test_a_table_of_subsets_comes_from_a_recipe_or_the_command_line(small: Path, tmp_path: Path) -> None:
    table = {"all": 0.5, "each": 0.3, "en de": 0.2}
    written = write(tmp_path / "subsets.yaml", {**SMALL, "model": {**SMALL["model"], "source_subsets": table}})
    assert config_of(load_recipe(written)).source_subsets == table
    for option in ("--source_subsets", "--model.source_subsets"):
        assert config_of(overridden(small, option, "{all: 0.5, each: 0.3, en de: 0.2}")).source_subsets == table
    with pytest.raises(ValueError, match=r"source_subsets\['cs'\]: unknown source 'cs'"):
        config_of(overridden(small, "--source_subsets", "{cs: 1}"))
    with pytest.raises(ValueError, match=r"model\.source_subsets must be .*mapping"):
        overridden(small, "--source_subsets", "all")


def test_what_a_recipe_leaves_out_has_defaults(small: Path) -> None:
    recipe = load_recipe(small)
    assert recipe.data == DataRecipe(path="text", sources=["en", "de", "fr"], target="cs")
    assert (recipe.data.train, recipe.data.dev, recipe.data.test) == ("train", "dev", "test")
    assert (recipe.tokenizer.kind, recipe.tokenizer.separate, recipe.tokenizer.load) == ("bpe", False, None)
    assert recipe.training_arguments().generation_max_length == recipe.data.max_length


def test_every_section_can_be_overridden(small: Path) -> None:
    arguments = "--combiner flat --model.d_model 32 --target=fr --data.max_length=7 --kind unigram --seed 3 --bf16 true"
    recipe = overridden(small, *arguments.split(), "--path", "some where", "--limit", "null")
    assert recipe.model == {**SMALL["model"], "combiner": "flat", "d_model": 32}
    assert (recipe.data.target, recipe.data.max_length, recipe.data.path) == ("fr", 7, "some where")
    assert recipe.tokenizer.kind == "unigram"
    assert recipe.training == {**SMALL["training"], "seed": 3, "bf16": True}


@pytest.mark.parametrize(
    ("arguments", "sources"),
    [
        (["--sources", "en", "de"], ["en", "de"]),
        (["--sources", "en"], ["en"]),
        (["--sources=en"], ["en"]),
        (["--data.sources", "en"], ["en"]),
        (["--sources", "[fr, en]"], ["fr", "en"]),
        (["--sources", "fr", "de", "en", "--combiner", "flat"], ["fr", "de", "en"]),
    ],
)
def test_sources_are_a_list_however_they_are_given(arguments: list[str], sources: list[str], small: Path) -> None:
    recipe = overridden(small, *arguments)
    assert recipe.data.sources == recipe.data.model_sources == sources
    assert config_of(recipe).source_names == sources


def test_one_source_in_a_recipe_may_be_a_bare_name(tmp_path: Path) -> None:
    data = {**SMALL["data"], "sources": "en"}
    assert load_recipe(write(tmp_path / "r.yaml", {**SMALL, "data": data})).data.sources == ["en"]


def test_norwegian_is_a_language_and_not_false(small: Path) -> None:
    recipe = overridden(small, "--sources", "en", "no", "--target", "no")
    assert (recipe.data.sources, recipe.data.target) == (["en", "no"], "no")


@pytest.mark.parametrize("number", ["1e-4", "1.0e-4", "0.0001"])
def test_numbers_may_have_exponents(number: str, small: Path) -> None:
    assert overridden(small, "--learning_rate", number).training_arguments().learning_rate == 1e-4
    text = small.read_text() + f"  adam_epsilon: {number}\n"
    assert load_recipe(write(small, text)).training_arguments().adam_epsilon == 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--combinr", "flat"], "unknown key 'combinr'; did you mean combiner"),
        (["--modle.combiner", "flat"], "unknown key 'modle.combiner'; did you mean combiner"),
        (["--training.combiner", "flat"], "unknown key 'training.combiner'; did you mean combiner"),
        (["--xyzzy", "1"], "^unknown key 'xyzzy'$"),
        (["--pad_token_id", "5"], "unknown key 'pad_token_id'"),
        (["--combiner"], "^--combiner needs a value$"),
        (["--combiner", "--seed", "1"], "^--combiner needs a value$"),
        (["flat", "--seed", "1"], "^'flat' does not follow an option; write --key value$"),
        (["--preset", "papr"], "model.preset must be one of default, paper; got 'papr'"),
        (["--noam_scale", "0.2"], "small.yaml: training.noam_scale needs training.warmup_steps"),
        (["--model_type", "rnn"], "model.model_type must be one of multisource, multisource-rnn; got 'rnn'"),
        (
            ["--model_type", "multisource-rnn"],
            "model.decoder_attention_heads is no setting of model_type 'multisource-",
        ),
        (["--combination", "basic"], "model.combination is no setting of model_type 'multisource'"),
        (["--halve_after_epoch", "2", "--max_steps", "9"], "halve_after_epoch replaces training.max_steps"),
        (["--halve_after_epoch", "2", "--noam_scale", "1"], "halve_after_epoch replaces training.noam_scale"),
    ],
)
def test_a_bad_command_line_is_named(arguments: list[str], message: str, small: Path) -> None:
    with pytest.raises(ValueError, match=message):
        overridden(small, *arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modle": {}}, "bad.yaml: unknown section 'modle'; allowed are data, tokenizer, model, training"),
        ({"model": {"combinr": "flat"}}, "unknown key 'model.combinr'; did you mean combiner"),
        ({"model": {"vocab_size": 5}}, "unknown key 'model.vocab_size'; did you mean vocab_size"),
        ({"data": None}, "bad.yaml: data.path is missing"),
        ({"data": {"path": "text", "sources": ["en"]}}, "bad.yaml: data.target is missing"),
        ({"training": {"seed": 1}}, "bad.yaml: training.output_dir is missing"),
        ({"training": {"output_dir": "x", "noam_scale": 1, "warmup_steps": 0}}, "noam_scale needs training.warmup"),
        ({"training": {"output_dir": "x", "noam_scale": 1, "warmup_steps": 0.1}}, "warmup_steps, 1 or more"),
        (
            {"training": {"output_dir": "x", "noam_scale": 1, "warmup_steps": 9, "learning_rate": 0.1}},
            "noam_scale replaces training.learning_rate; give one of them",
        ),
        *(
            (
                {"training": {"output_dir": "x", "max_tokens_per_batch": tokens}},
                rf"training.max_tokens_per_batch must be a whole number, {least} or more, .*; got {tokens}",
            )
            for tokens, least in ((0, 1), (127, r"data.max_length \(128\)"), (4096.5, 1))
        ),
    ],
)
def test_a_bad_recipe_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe(write(tmp_path / "bad.yaml", {**SMALL, **change}))


@pytest.mark.parametrize("text", ["", "- data\n- model\n", "just words\n", "data: [\n", "data: words\n"])
def test_a_file_that_is_no_recipe_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"bad\.yaml"):
        load_recipe(write(tmp_path / "bad.yaml", text))


def test_a_shipped_recipe_is_found_by_its_name() -> None:
    assert load_recipe(CONFIGS[0].stem) == load_recipe(CONFIGS[0])


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.yaml"):
        load_recipe(tmp_path / "none.yaml")


@pytest.mark.parametrize("key", ["predict_with_generate", "remove_unused_columns"])
def test_what_training_needs_cannot_be_changed(key: str, small: Path) -> None:
    with pytest.raises(ValueError, match=f"'{key}' is not a key of a recipe: training sets it"):
        overridden(small, f"--{key}", "false")


@pytest.mark.parametrize(("width", "warmup", "scale"), [(16, 40, 0.2), (128, 500, 0.6)])
def test_the_learning_rate_is_noams(width: int, warmup: int, scale: float, small: Path) -> None:
    overrides = ["--d_model", str(width), "--warmup_steps", str(warmup), "--noam_scale", str(scale)]
    arguments: Any = overridden(small, *overrides).training_arguments()
    assert arguments.learning_rate == pytest.approx(scale * (width * warmup) ** -0.5, rel=1e-12)

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate)
    schedule: Any = get_scheduler(
        arguments.lr_scheduler_type,
        optimizer,
        num_warmup_steps=arguments.get_warmup_steps(10**6),
        num_training_steps=10**6,
        scheduler_specific_kwargs=arguments.lr_scheduler_kwargs,
    )
    assert isinstance(schedule, LambdaLR)
    for step in (1, 7, warmup - 1, warmup, warmup + 1, 10 * warmup, 123_456):
        noam = scale * width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert schedule.base_lrs[0] * schedule.lr_lambdas[0](step) == pytest.approx(noam, rel=1e-9)


def test_noam_reads_the_width_of_the_default_model(tmp_path: Path) -> None:
    training = {**SMALL["training"], "noam_scale": 1.0, "warmup_steps": 8}
    recipe = load_recipe(write(tmp_path / "r.yaml", {"data": SMALL["data"], "training": training}))
    assert recipe.training_arguments().learning_rate == pytest.approx((config_of(recipe).d_model * 8) ** -0.5)


def test_without_noam_the_learning_rate_is_the_given_one(small: Path) -> None:
    arguments = overridden(small, "--learning_rate", "0.5", "--warmup_steps", "9").training_arguments()
    assert (arguments.learning_rate, arguments.lr_scheduler_type) == (0.5, "linear")


@pytest.mark.parametrize("preset", PRESETS)
def test_the_preset_is_the_configs_and_given_fields_win(preset: str, small: Path) -> None:
    config = config_of(overridden(small, "--preset", preset, "--layer_norm_eps", "0.25"))
    assert config.attention_bias == (preset != "paper")
    assert config.layer_norm_eps == 0.25 and config.d_model == 16


def test_an_lstm_has_no_preset(tmp_path: Path) -> None:
    content = {**SMALL, "model": {"model_type": "multisource-rnn", "d_model": 16}}
    recipe = write(tmp_path / "lstm.yaml", content)
    assert config_of(load_recipe(recipe)).model_type == "multisource-rnn"
    with pytest.raises(ValueError, match=r"model\.preset: model_type 'multisource-rnn' has none"):
        load_recipe(recipe, {"preset": "paper"})


def test_a_source_may_have_settings_and_a_vocabulary_of_its_own(small: Path) -> None:
    own = [{"name": "de", "layers": 2, "dropout": 0.5}]
    config: Any = load_recipe(small, {"model.sources": own}).model_config(500, {"fr": 99})
    assert [source.to_dict() for source in config.sources] == [
        {"name": "en", "kind": "text"},
        {"name": "de", "kind": "text", "layers": 2, "dropout": 0.5},
        {"name": "fr", "kind": "text", "vocab_size": 99},
    ]


def test_settings_for_an_unknown_source_are_an_error(small: Path) -> None:
    with pytest.raises(ValueError, match="unknown source 'es'"):
        config_of(load_recipe(small, {"model.sources": [{"name": "es", "layers": 2}]}))


def test_building_a_model_leaves_the_recipe_as_it_is(small: Path) -> None:
    recipe = load_recipe(small, {"preset": "paper", "model.sources": [{"name": "de", "layers": 2}]})
    first = config_of(recipe).to_dict()
    recipe.training_arguments()
    assert config_of(recipe).to_dict() == first and recipe.model["preset"] == "paper"


def test_the_attention_implementation_reaches_the_model(small: Path) -> None:
    assert config_of(overridden(small, "--attn_implementation", "eager"))._attn_implementation == "eager"


@pytest.mark.parametrize(("key", "value"), [("source_subsets", "{all: 0.5, each: 0.5}"), ("absent_vectors", "true")])
def test_what_is_about_several_sources_is_refused_where_they_are_joined(small: Path, key: str, value: str) -> None:
    message = f"model.{key} is .*, but with data.concatenate the model has a single source, of joined texts"
    with pytest.raises(ValueError, match=message):
        overridden(small, "--concatenate", "true", f"--{key}", value)


def test_concatenated_sources_are_one_text_in_order(small: Path) -> None:
    recipe = overridden(small, "--concatenate", "true")
    rows: list[dict[str, str | None]] = [
        {"en": "A boy.", "de": "Ein Junge.", "fr": "Un garçon.", "cs": "Chlapec."},
        {"en": None, "de": "Zwei.", "fr": None, "cs": "Dva."},
        {"en": "A", "de": None, "fr": "Un", "cs": None},
        {"en": None, "de": None, "fr": None, "cs": "Nic."},
    ]
    before = [dict(row) for row in rows]
    assert recipe.data.model_rows(rows) == [
        {"all": "A boy. | Ein Junge. | Un garçon.", "cs": "Chlapec."},
        {"all": "Zwei.", "cs": "Dva."},
        {"all": "A | Un", "cs": None},
        {"all": None, "cs": "Nic."},
    ]
    assert rows == before
    assert recipe.data.model_sources == config_of(recipe).source_names == ["all"]


def test_rows_are_as_they_are_without_concatenation(small: Path) -> None:
    rows: list[dict[str, str | None]] = [{"en": "A", "de": None, "fr": "Un", "cs": "B"}]
    assert load_recipe(small).data.model_rows(rows) == rows


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_saved_recipe_loads_the_same(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path, {"path": "Žluťoučký kůň", "output_dir": str(tmp_path)})
    recipe.save(tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    assert "Žluťoučký kůň" in (tmp_path / "recipe.yaml").read_text(encoding="utf-8")
    assert set(yaml.safe_load((tmp_path / "recipe.yaml").read_text(encoding="utf-8"))) == {
        "data",
        "tokenizer",
        "model",
        "training",
    }
