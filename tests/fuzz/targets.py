"""What is fuzzed: for each kind of input a strategy of broken ones, and the call that must survive them."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoModelForSeq2SeqLM

from archive_files import debian, tarred, zipped
from builders import three_source_batch, three_source_lstm, three_source_model, tiny_config
from catalogue_samples import SAMPLES, Sample
from hf_multisource import (
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourceProcessor,
    MultiSourceRNNConfig,
    read_picture,
)
from hf_multisource.data.archives import read_files
from hf_multisource.data.catalogue_entries import Entry, Identity
from hf_multisource.data.catalogue_files import fill_catalogue, find_format, read_catalogue
from hf_multisource.data.catalogue_views import view_of
from hf_multisource.data.media import read_features
from hf_multisource.data.plural_forms import plural_rule
from hf_multisource.data.rows import read_split
from hf_multisource.data.streams import stream_rows
from hf_multisource.foreign import load_auto
from hf_multisource.recipes.reading import parse_overrides
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.sounds import read_sound
from kinds import mixed_processor, wav_bytes
from mutations import DEEP, DIGITS, HOSTILE, JUNK, damaged, json_text, mutated, safetensors, to_json, weighted
from runs import RECIPE

WRAPPED = {"model_type": "bert", "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
WRAPPED |= {"intermediate_size": 8, "max_position_embeddings": 16, "pad_token_id": 0}
PICTURE = {"model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
PICTURE |= {"intermediate_size": 8, "image_size": 8, "patch_size": 4}
SIDE = 8  # of pictures, in pixels
EVIL = 'open("went off", "w")\nclass Evil: pass\n'
LARGEST = 2**26  # pixels that an accepted picture may have


@dataclass(frozen=True)
class Target:
    """One kind of input.

    Args:
        name: Its name on the page of results.
        good: Unbroken inputs, which the call must accept.
        examples: Strategy of broken inputs.
        call: What reads one of them.
        short: Number of examples in the run of `make test`.
        foreign: Whether the content of the file is Transformers' own (such as `generation_config.json`): then any
            exception of Transformers may end the call. Everything else is as for the others.
    """

    name: str
    good: list[Any]
    examples: st.SearchStrategy[Any]
    call: Callable[[Any], object]
    short: int
    foreign: bool = False


def own_settings(config: Any) -> dict[str, Any]:
    """What `config.json` holds of a configuration's own settings; those of Transformers are not ours to validate."""
    kept = {*config.setting_names(), "model_type", "pad_token_id", "bos_token_id", "eos_token_id", "is_encoder_decoder"}
    return {key: value for key, value in config.to_dict().items() if key in kept}


def save_evil(folder: Path) -> Path:
    """Put beside a checkpoint what its configuration may name: code, and a file that looks like a pickle."""
    (folder / "evil.py").write_text(EVIL, "utf-8")
    (folder / "evil.bin").write_bytes(b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.")
    return folder


def generate(model: Any) -> Any:
    """Generate two tokens from what every source of text is given; sources of other kinds stay absent."""
    texts = [source.name for source in model.config.sources if source.kind == "text"]
    prefixed = {name: "" if name == model.config.source_names[0] else f"{name}_" for name in texts}
    inputs = {f"{prefix}input_ids": torch.tensor([[3, 1]]) for prefix in prefixed.values()}
    return model.generate(**inputs, num_beams=2, max_new_tokens=2) if inputs else None


def model_folders(folder: Path) -> dict[str, Path]:
    """Good checkpoints of both families, and one that wraps models of Transformers."""
    text, picture = ({"name": name, "kind": "pretrained"} for name in ("bert", "image"))
    wrapping = MultiSourceForConditionalGeneration(
        tiny_config(sources=["en", {**text, "encoder": WRAPPED}, {**picture, "encoder": PICTURE}])
    )
    models = {"own": three_source_model(), "lstm": three_source_lstm(), "wrapping": wrapping}
    for name, model in models.items():
        model.save_pretrained(folder / name)
        save_evil(folder / name)
    return {name: folder / name for name in models}


def checkpoint_targets(folder: Path) -> list[Target]:
    """`config.json`, weights and `generation_config.json`; the other files are good."""
    folders = model_folders(folder)

    def load(place: Path, loader: Any = None) -> None:
        # As the commands do, which check the files before Transformers' Auto classes read them.
        loader = loader or partial(load_auto, "AutoModelForSeq2SeqLM")
        model, report = loader(place, output_loading_info=True)
        drawn = sorted(report["missing_keys"] - {"final_logits_bias"})  # which begins at 0, not at random
        assert not drawn, f"weights are drawn anew: {drawn[:9]}"
        assert all(weight.isfinite().all() for weight in model.state_dict().values()), "weights that are no numbers"
        generate(model)

    def load_from(files: dict[Path, bytes], loader: Any = None) -> None:
        for path, content in files.items():
            path.write_bytes(content)
        load(next(iter(files)).parent, loader)

    def configuration(given: tuple[Any, Any]) -> None:
        family, fields = given
        if isinstance(fields, dict) and DEEP not in (text := json.dumps(fields)) and DIGITS not in text:
            config = family.from_dict(json.loads(to_json(fields)))
            config.to_json_string()
            with torch.device("meta"):
                AutoModelForSeq2SeqLM.from_config(config)

    def good(name: str) -> Any:
        return own_settings(
            (MultiSourceRNNConfig if name == "lstm" else MultiSourceConfig).from_pretrained(folders[name])
        )

    def broken(name: str, file: str, content: st.SearchStrategy[bytes]) -> st.SearchStrategy[dict[Path, bytes]]:
        place = folder / f"{name}-{file}"
        if not place.exists():
            shutil.copytree(folders[name], place)
        return content.map(lambda data: {place / file: data})

    def unbroken(name: str, file: str) -> dict[Path, bytes]:
        return {folder / f"{name}-{file}" / file: (folders[name] / file).read_bytes()}

    def written(name: str) -> dict[Path, bytes]:
        return {folder / f"{name}-config.json" / "config.json": to_json(good(name)).encode()}

    # A good checkpoint said to be quantized loads, and fails in the package that quantizes when it is used.
    ours = [key for key in HOSTILE if key != "quantization_config"]
    config_json = [broken(name, "config.json", json_text(good(name), ours)) for name in folders]
    any_config_json = [broken(name, "config.json", json_text(good(name))) for name in folders]
    weights = {name: (place / "model.safetensors").read_bytes() for name, place in folders.items()}
    generation = json.loads((folders["own"] / "generation_config.json").read_bytes())
    generation |= {"num_beams": 2, "max_length": 8, "length_penalty": 1.0, "do_sample": False, "temperature": 1.0}
    generation |= {"no_repeat_ngram_size": 2, "early_stopping": True, "num_return_sequences": 1, "top_k": 5}
    generation |= {"forced_eos_token_id": 1, "suppress_tokens": [3], "bad_words_ids": [[4]], "use_cache": True}
    families = {"own": MultiSourceConfig, "wrapping": MultiSourceConfig, "lstm": MultiSourceRNNConfig}
    fields = [st.tuples(st.just(family), mutated(good(name))) for name, family in families.items()]
    return [
        Target(
            "configurations", [(f, good(name)) for name, f in families.items()], st.one_of(fields), configuration, 200
        ),
        Target("config.json, read by commands", list(map(written, folders)), st.one_of(config_json), load_from, 50),
        Target(
            "config.json, read by Auto classes",
            list(map(written, folders)),
            st.one_of(any_config_json),
            partial(load_from, loader=AutoModelForSeq2SeqLM.from_pretrained),
            40,
            foreign=True,
        ),
        Target(
            "safetensors files",
            [unbroken(name, "model.safetensors") for name in folders],
            st.one_of([broken(name, "model.safetensors", safetensors(data)) for name, data in weights.items()]),
            load_from,
            60,
        ),
        Target(
            "generation_config.json",
            [unbroken("own", "generation_config.json")],
            broken("own", "generation_config.json", json_text(generation)),
            load_from,
            40,
            foreign=True,
        ),
    ]


def processor_targets(folder: Path) -> list[Target]:
    """`processor_config.json`, which is ours, and the files of tokenizers and feature extractors, which are not."""
    good = folder / "processor"
    mixed_processor("en", "image", "speech", "regions").save_pretrained(good)
    save_evil(good)

    def load_from(files: dict[Path, bytes]) -> None:
        for path, content in files.items():
            path.write_bytes(content)
        processor = MultiSourceProcessor.from_pretrained(
            next(iter(files)).parents[len(next(iter(files)).parts) - depth]
        )
        values: dict[str, Any] = {
            name: "a dog" for name in processor.source_names if processor.main_input(name) == "input_ids"
        }
        if values:
            processor(**values, text_target="a cat", return_tensors="pt")
        processor.save_pretrained(folder / "saved")

    depth = len(folder.parts) + 2  # parts of the path of a file that lies at the top of a checkpoint

    def broken(file: str) -> st.SearchStrategy[dict[Path, bytes]]:
        place = folder / file.replace("/", "-")
        shutil.copytree(good, place, dirs_exist_ok=True)
        return json_text(json.loads((place / file).read_bytes())).map(lambda data: {place / file: data})

    def unbroken(file: str) -> dict[Path, bytes]:
        return {folder / file.replace("/", "-") / file: (good / file).read_bytes()}

    own = "processor_config.json"
    parts = ["tokenizer_config.json", *(f"{name}_processor/preprocessor_config.json" for name in ("image", "speech"))]
    return [
        Target("processor_config.json", [unbroken(own)], broken(own), load_from, 60),
        Target(
            "files of tokenizers and extractors",
            list(map(unbroken, parts)),
            st.one_of(list(map(broken, parts))),
            load_from,
            60,
            foreign=True,
        ),
    ]


YAML = [
    "&a [*a]",
    "{a: &a {x: 1}, b: *a}",
    "[" * 5000 + "]" * 5000,
    "- " * 3000,
    "\t- x",
    "!!python/object/apply:os.system [exit]",
    "!!binary '%'",
    "!unknown x",
    "x: 1\nx: 2",
    "? [a, b]\n: c",
    "<<: {data: {}}",
    "%YAML 9.9\n---\n",
    "--- 1\n--- 2",
    "\ufeffdata: {}",
    "data: \x00",
    "9" * 10_000,
    "0o7777",
    "1:30:00",
    "2020-13-45",
    ".nan",
    "~",
    "'",
    "data: |\n  x",
    "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}' if i else 'lol'] * 9)}]\n" for i in range(12)),
]


def recipe_targets(folder: Path) -> list[Target]:
    """Recipes as text and as values, and command lines that change them."""
    path = folder / "recipe.yaml"
    valid = json.loads(json.dumps(RECIPE))
    sources = ["en", {"name": "de", "layers": 1}, {"name": "image", "kind": "features", "feature_size": 4}]
    valid["data"] |= {"sources": ["en", "de", "image", "bert"], "origin": "a corpus"}
    valid["model"]["sources"] = [*sources, {"name": "bert", "kind": "pretrained", "encoder": WRAPPED}]
    valid["training"] |= {"source_learning_rates": {"bert": 1e-4}, "seed": 1}
    keys = [f"{section}.{key}" for section, values in valid.items() for key in values]
    texts = [junk if isinstance(junk, str) else json.dumps(junk) for junk in JUNK if junk not in (DEEP, DIGITS)]

    def load(text: bytes) -> None:
        path.write_bytes(text)
        recipe = load_recipe(path)
        recipe.save(folder / "saved.yaml")
        assert load_recipe(folder / "saved.yaml") == recipe, "a saved recipe is another one"

    def override(arguments: list[str]) -> None:
        path.write_text(yaml.safe_dump(valid), encoding="utf-8")
        load_recipe(path, parse_overrides(arguments)).save(folder / "saved.yaml")

    @st.composite
    def written(draw: st.DrawFn) -> bytes:
        text = yaml.safe_dump(draw(mutated(valid, hostile=["to_dict", "auto_map"], most=2)), sort_keys=False)
        return text.replace(DEEP, "[" * 5000 + "]" * 5000).replace(DIGITS, "9" * 10_000).encode(errors="replace")

    @st.composite
    def patched(draw: st.DrawFn) -> bytes:
        lines = yaml.safe_dump(valid, sort_keys=False).splitlines()
        at, new = draw(st.integers(0, len(lines) - 1)), draw(st.sampled_from(YAML))
        line = lines[at]
        lines[at] = draw(st.sampled_from([new, f"{line}\n{new}", f"{line.partition(':')[0]}: {new}"]))
        return draw(st.sampled_from(["\n".join(lines), new])).encode()

    value = st.sampled_from([*texts, *YAML, "1", "1", "2", "1e-4", "0.1", "true", "no", "en", "steps", "serial"])
    values = weighted({value.map(lambda one: [one]): 8, st.lists(value, max_size=3): 2})
    key = weighted({st.sampled_from(keys): 9, st.sampled_from([*HOSTILE, "x", ""]): 1})
    option = st.tuples(key, values)
    lines = st.lists(option, min_size=1, max_size=2, unique_by=lambda option: option[0]).map(
        lambda options: [word for name, given in options for word in (f"--{name}", *given)]
    )
    good = yaml.safe_dump(valid, sort_keys=False).encode()
    return [
        Target("recipes", [good], weighted({written(): 6, patched(): 3, damaged(good): 1}), load, 60),
        Target("overrides of recipes", [["--model.d_model", "32", "--seed", "2"]], lines, override, 30),
    ]


def picture_files() -> dict[str, bytes]:
    """Small good pictures, and files of formats that nobody asked for."""
    picture = Image.fromarray(np.arange(SIDE * SIDE * 3, dtype=np.uint8).reshape(SIDE, SIDE, 3))
    files = {}
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "ICO", "TGA", "PDF", "EPS"):
        stream = io.BytesIO()
        picture.save(stream, kind)
        files[kind] = stream.getvalue()
    stream = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000).save(stream, "PNG")
    files["PNG of 16 bits"] = stream.getvalue()
    stream = io.BytesIO()
    picture.quantize(4).save(stream, "PNG", transparency=0, bits=2)
    files["PNG with a palette"] = stream.getvalue()
    return files


@st.composite
def arrays(draw: st.DrawFn, most: int = 4) -> np.ndarray:
    """An array of any type and shape, with numbers that are none."""
    kind = draw(st.sampled_from(["u1", "i2", "i8", "f2", "f4", "f8", "c8", "?", "U3", "M8[s]", ">f4"]))
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 5]), max_size=most))
    seed = draw(st.integers(0, 99))
    array = np.random.default_rng(seed).normal(size=shape) * draw(st.sampled_from([0.5, 100.0]))
    with np.errstate(all="ignore"):
        array = abs(array).astype("i8").astype(kind) if kind == "M8[s]" else array.astype(kind)
    if array.dtype.kind == "f" and array.size:
        array.flat[0] = draw(st.sampled_from([0.0, np.nan, np.inf, -np.inf, 1.0]))
    return array


def media_targets(folder: Path) -> list[Target]:
    """Pictures, sound and feature arrays, as files and as values."""

    def see(value: Any) -> None:
        if isinstance(value, tuple):
            suffix, content = value
            path = folder / f"picture{suffix}"
            path.write_bytes(content)
            value = {"bytes": None, "path": str(path)}
        picture = read_picture(value)
        assert picture.mode == "RGB", picture.mode
        assert picture.width * picture.height <= LARGEST, picture.size

    def hear(value: Any) -> None:
        if isinstance(value, tuple):
            (folder / "sound.wav").write_bytes(value[1])
            value = str(folder / "sound.wav")
        sound = read_sound(value)
        assert np.isfinite(np.asarray(sound["array"], dtype=float)).all(), "samples that are no numbers"

    def measure(value: tuple[str, bytes]) -> None:
        path = folder / f"features{value[0]}"
        path.write_bytes(value[1])
        for row in read_features(path):  # which may lie in a memory map: numbers are checked when they are encoded
            found = processor(en="a dog", regions=row, return_tensors="pt")["regions_input_features"]
            assert found.isfinite().all(), "features that are no numbers"

    processor = mixed_processor("en", "regions")

    def npy(array: np.ndarray) -> bytes:
        stream = io.BytesIO()
        np.save(stream, array)
        return stream.getvalue()

    def npz(given: list[np.ndarray]) -> bytes:
        stream = io.BytesIO()
        named: dict[str, Any] = {f"x{i}": array for i, array in enumerate(given)}
        np.savez_compressed(stream, **named)
        return stream.getvalue()

    def objects() -> bytes:
        stream = io.BytesIO()
        np.save(stream, np.array([{}, None], dtype=object), allow_pickle=True)
        return stream.getvalue()

    pictures = [st.one_of(st.just(content), damaged(content)) for content in picture_files().values()]
    suffixes = st.sampled_from([".png", ".jpg", ".eps", "", ".tiff"])
    sounds = [wav_bytes(list(range(-4, 8)), channels=channels) for channels in (1, 2)]
    sound = st.one_of(*map(damaged, sounds), st.just(b""), st.just(b"RIFF"), st.just(b"OggS" + b"\0" * 60))
    rates = st.sampled_from([None, 8000, 0, -1, float("nan"), "8000"])
    samples = st.one_of(arrays(2), st.lists(st.sampled_from([0.0, 1, None, "x", float("nan")]), max_size=3))
    decoded = st.fixed_dictionaries({"array": samples, "sampling_rate": rates})
    good = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    files = st.one_of(
        st.tuples(st.just(".npy"), arrays(5).map(npy)),
        st.tuples(st.just(".npy"), damaged(npy(good))),
        st.tuples(st.just(".npy"), st.just(objects())),
        st.tuples(st.just(".npz"), st.lists(arrays(5), max_size=2).map(npz)),
        st.tuples(st.just(".npz"), damaged(npz([good]))),
        st.tuples(st.just(".npz"), st.just(npy(good))),
        st.tuples(st.just(".npy"), st.just(npz([good]))),
    )
    return [
        Target(
            "pictures",
            list(picture_files().values())[:6],
            st.one_of(*pictures, st.tuples(suffixes, st.one_of(pictures)), arrays()),
            see,
            125,
        ),
        Target(
            "sounds",
            [*sounds, {"array": np.zeros(3), "sampling_rate": 8000}],
            st.one_of(sound, st.tuples(st.just(".wav"), sound), decoded, st.just({"bytes": None, "path": None})),
            hear,
            75,
        ),
        Target("arrays of features", [(".npy", npy(good)), (".npz", npz([good]))], files, measure, 75),
    ]


def row_targets(folder: Path) -> list[Target]:
    """Text, gzipped text, JSON lines, CSV and TSV."""
    row = {"en": "a dog", "de": None, "cs": "pes"}
    nested = {"translation": row}

    def read(files: dict[str, bytes]) -> None:
        place = folder / "data"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name, content in files.items():
            (place / name).write_bytes(content)
        split = read_split(str(place), "train", ["en", "de"], "cs")
        assert all(value is None or isinstance(value, str) for found in split.rows for value in found.values())
        streamed = list(stream_rows(str(place), "train", ["en", "de", "cs"]))
        assert [streamed[line] for line in split.kept] == split.rows

    def encode(text: str) -> bytes:
        return text.encode("utf-8", "surrogatepass")

    text = st.one_of(st.text(max_size=20).map(encode), st.binary(max_size=20), st.just(b"a\nb\n"), st.just(b"a\nb\r\n"))
    columns = st.fixed_dictionaries({f"train.{name}": text for name in row})
    zipped = text.map(lambda content: gzip.compress(content, mtime=0))
    gz = st.fixed_dictionaries({f"train.{name}.gz": st.one_of(zipped, zipped.flatmap(damaged)) for name in row})
    line = st.one_of(mutated(row), mutated(nested), st.just(row)).map(lambda value: to_json(value).encode())
    lines = st.lists(st.one_of(line, line, text), max_size=3).map(b"\n".join)
    tables = lines.map(lambda content: {"train.jsonl": content})
    gz_tables = lines.map(lambda content: {"train.jsonl.gz": gzip.compress(content, mtime=0)})
    cell = st.one_of(text, text.map(lambda content: b'"' + content.replace(b'"', b'""') + b'"'))
    cells = st.lists(cell, min_size=2, max_size=4).map(b",".join)
    csv = st.lists(cells, max_size=3).map(lambda rows: {"train.csv": b"\n".join([b"en,de,cs", *rows])})
    tsv = st.binary(max_size=30).map(lambda content: {"train.tsv": b"en\tde\tcs\n" + content})
    good = [{f"train.{name}": b"a b\n" for name in row}, {"train.jsonl": to_json(row).encode()}]
    good.append({"train.csv": b'de,en,cs\n,"a ""dog""",pes\n'})
    return [Target("rows of data", good, st.one_of(columns, gz, tables, gz_tables, csv, tsv), read, 100)]


def generation_targets(folder: Path) -> list[Target]:
    """Arguments of `generate` that only this package has: shortlists, with any end tokens and numbers of beams."""
    model, batch = three_source_model(), three_source_batch()

    def call(given: dict[str, Any]) -> None:
        given = {**given, "shortlist": torch.tensor(given["shortlist"], dtype=torch.long)}
        found = model.generate(**batch, **given, max_new_tokens=3)
        assert found.max() < model.config.vocab_size

    ids = st.integers(0, 15)
    lists = st.lists(ids, min_size=1, max_size=6, unique=True)
    arguments = {
        "shortlist": weighted({lists: 4, st.lists(st.integers(-1, 17), max_size=4): 1}),
        "num_beams": st.integers(1, 4),
        "eos_token_id": st.one_of(ids, st.lists(ids, min_size=1, max_size=4, unique=True)),
    }
    good = {"shortlist": list(range(16)), "num_beams": 2, "eos_token_id": 1}
    return [Target("shortlists", [good], st.fixed_dictionaries(arguments), call, 30)]


# Lines that break a catalogue, by its suffix.
FLUENT_LINES = [
    "x = { $n ->",
    "   *[other] y",
    "    }",
    '    .label = { "',
    "-term = ",
    "x = {",
    "    [one]",
    "x =\n    y",
]
GETTEXT_LINES = [
    *('msgid "', 'msgstr[9] "x"', 'msgctxt "x"', "#~", "#,", '"\\x"', 'msgid ""', 'msgstr "\\777"', "#| msgid"),
    '"charset=utf-7\\n"',
    '"Plural-Forms: nplurals=99; plural=(n/0);\\n"',
    '"Plural-Forms: nplurals=2; plural=' + "(" * 900 + 'n;\\n"',
]
DTD_LINES = [
    "<!ENTITY",
    '<!ENTITY x "',
    "<!--",
    "-->",
    "%x;",
    '<!ENTITY % x SYSTEM "/etc/passwd">',
    '<!ENTITY x "&x;">',
]
PROPERTIES_LINES = ["\\", "x = \\u12", "x\\", "=", "!", "x = \\ud800", " : ", "\\\\=\\u0000"]
CATALOGUE_LINES = {
    ".ftl": FLUENT_LINES,
    ".po": GETTEXT_LINES,
    ".dtd": DTD_LINES,
    ".properties": PROPERTIES_LINES,
}
XML_LINES = [
    *("<", ">", "]]>", "<![CDATA[", "&x;", "&#0;", "<x>", "</x>", "<?x?>", "<x" + " y='1'" * 3 + "/>", "<a>" * 200),
    '<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]>',
    '<!DOCTYPE x SYSTEM "file:///etc/passwd">',
    "<?xml version='1.0' encoding='utf-16'?>",
    '<item quantity="x">a</item>',
    '<target state="x"/>',
]


def catalogue_targets(folder: Path) -> list[Target]:
    """Catalogues of all formats, which are read and filled, and archives of them."""
    plural_rule("dsb")  # babel reads the pickles of its package: once, before that is forbidden

    def texts_of(entries: tuple[Entry, ...]) -> dict[Identity, tuple[str, str]]:
        found: dict[Identity, tuple[str, str]] = {}
        for entry in entries:
            found.setdefault(entry.identity, (entry.text, entry.state))
        return found

    def fill(given: tuple[str, bytes, dict[Identity, str], bytes]) -> None:
        path, content, new, reference = given
        catalogue = read_catalogue(path, content)
        view_of(catalogue, "dsb")
        json.dumps([[one.key, one.part, one.text, one.comment] for one in catalogue.entries]).encode()
        if (form := find_format(path)) is None or form.fill is None:
            return
        filled = fill_catalogue(catalogue, new, read_catalogue(path, reference) if reference else None)
        before, after = texts_of(catalogue.entries), texts_of(read_catalogue(path, filled.content).entries)
        assert {*filled.refused} | {*filled.filled} == {*new}, "an entry is neither filled nor refused"
        assert all(after[identity][0] == new[identity] for identity in filled.filled), "another text is written"
        kept = {identity: text for identity, text in before.items() if identity not in filled.filled}
        assert all(after.get(identity) == text for identity, text in kept.items()), "another entry has changed"

    def unpack(given: tuple[str, bytes]) -> None:
        name, content = given
        place = folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        (place / name).write_bytes(content)
        for path, data in read_files(place / name, lambda one: find_format(one) is not None):
            assert not path.startswith("/") and ".." not in path.split("/"), "a path leaves the archive"
            read_catalogue(path, data)

    def compile_mo(texts: dict[bytes, bytes]) -> bytes:
        pairs = sorted(texts.items())
        tables, data, start = b"", b"", 28 + 16 * len(pairs)
        for column in (0, 1):
            for pair in pairs:
                tables += struct.pack("<2I", len(pair[column]), start + len(data))
                data += pair[column] + b"\0"
        header = struct.pack("<7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
        return header + tables + data

    @st.composite
    def patched(draw: st.DrawFn, sample: Sample) -> bytes:
        suffix = Path(sample.path).suffix
        lines = sample.text.split("\n")
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(lines) - 1))
            other = draw(st.sampled_from([*CATALOGUE_LINES.get(suffix, XML_LINES), *lines]))
            cut = draw(st.integers(0, len(lines[at])))
            lines[at] = draw(
                st.sampled_from([other, f"{other}\n{lines[at]}", lines[at][:cut] + other + lines[at][cut:], ""])
            )
        return "\n".join(lines).encode("utf-8", "surrogatepass")

    @st.composite
    def broken(draw: st.DrawFn, sample: Sample) -> tuple[str, bytes, dict[Identity, str], bytes]:
        good = sample.text.encode()
        content = draw(weighted({patched(sample): 6, damaged(good): 3, st.just(good): 2}))
        words = st.one_of(
            st.text(max_size=8), st.sampled_from(["{", "<b>", "&", "\\", '"', "\r", " x ", "]]>", "%", "#", "\n"])
        )
        identities = draw(st.lists(st.sampled_from([*sample.new, ("x", ""), ("", "[x]")]), max_size=4, unique=True))
        new = {one: draw(st.one_of(words, st.just(sample.new.get(one, "x")))) for one in identities}
        return sample.path, content, new, draw(st.sampled_from([b"", sample.reference.encode()]))

    mo = compile_mo({b"": b"Content-Type: text/plain; charset=UTF-8\n", b"a": b"b", b"x\0y": b"1\0002"})
    compiled: st.SearchStrategy[Any] = st.one_of(damaged(mo), st.just(mo)).map(
        lambda content: ("a.mo", content, {}, b"")
    )
    files = {f"de/{sample.path}": sample.text.encode() for sample in SAMPLES}
    inner = zipped(files)
    archives = {
        "a.zip": zipped({**files, "b.xpi": inner}),
        "a.xpi": inner,
        "a.deb": debian(
            tarred(
                {f"./{name}": data for name, data in files.items()},
            ),
            "data.tar",
        ),
        "b.deb": debian(gzip.compress(tarred(files), mtime=0), "data.tar.gz"),
    }
    packed = [
        damaged(content).map(partial(lambda name, data: (name, data), name)) for name, content in archives.items()
    ]
    names = st.sampled_from(["../a.ftl", "/a.ftl", "a/../../b.po", "a\\..\\b.po", "a\0.ftl", "a.ftl", "C:/a.po", "/"])
    named = names.map(lambda name: ("a.zip", zipped({name: b"x = y\n"})))
    tars = names.map(lambda name: ("a.deb", debian(tarred({name: b"x = y\n"}), "data.tar")))
    good = [(one.path, one.text.encode(), dict(one.new), one.reference.encode()) for one in SAMPLES]
    return [
        Target("catalogues", [*good, ("a.mo", mo, {}, b"")], st.one_of(*map(broken, SAMPLES), compiled), fill, 150),
        Target("archives of catalogues", [*archives.items()], st.one_of(*packed, named, tars), unpack, 60),
    ]


GROUPS: tuple[Callable[[Path], list[Target]], ...] = (
    checkpoint_targets,
    processor_targets,
    recipe_targets,
    media_targets,
    row_targets,
    catalogue_targets,
    generation_targets,
)


def all_targets(folder: Path) -> list[Target]:
    """Return all targets. Each group writes its files, valid and damaged, to its own subfolder."""
    made = []
    for group in GROUPS:
        place = folder / group.__name__
        place.mkdir(exist_ok=True)
        made += group(place)
    return made
