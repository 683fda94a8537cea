"""Broken input: strategies that change valid JSON values and valid files in a few places."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

DEEP = "@deep@"  # stands for lists within lists, deeper than Python's recursion limit
DIGITS = "@digits@"  # stands for an integer of more digits than Python reads
JUNK: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    2,
    3,
    -1,
    7,
    2**31,
    2**63,
    10**8,
    10**40,
    0.0,
    0.5,
    -0.5,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    " ",
    "x",
    "en",
    "load",
    "../other",
    "/etc/passwd",
    "self",
    "to_dict",
    "a\nb",
    "\x00",
    "\ud800",
    "é" * 5000,
    "hf-hub:org/x",
    "org/x--evil.Evil",
    [],
    [None],
    [[]],
    [-1],
    ["en", "en"],
    {},
    {"name": "en"},
    {"": None},
    {"a": {"b": [1, {"c": None}]}},
    DEEP,
    DIGITS,
]
# Settings that make Transformers or timm run code, read pickles or fetch files, or that overwrite attributes.
HOSTILE: dict[str, Any] = {
    "auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoProcessor": "evil.Evil"},
    "_name_or_path": "org/evil",
    "model_type": "unheard-of",
    "backbone": "org/x",
    "backbone_config": {"model_type": "resnet"},
    "use_pretrained_backbone": True,
    "use_timm_backbone": True,
    "backbone_kwargs": {"checkpoint_path": "evil.bin"},
    "model_args": {"checkpoint_path": "evil.bin"},
    "architecture": "hf-hub:org/x",
    "custom_pipelines": {"x": {"impl": "evil.Evil", "pt": ["AutoModel"]}},
    "attn_implementation": "org/kernel",
    "_attn_implementation": "org/kernel",
    "is_encoder_decoder": False,
    "tokenizer_class": "Evil",
    "processor_class": "Evil",
    "image_processor_type": "Evil",
    "feature_extractor_type": "Evil",
    "auto_class": "AutoModel",
    "source_names": ["../other"],
    "source_kinds": {},
    "to_dict": 1,
    "__class__": "evil",
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "dtype": "float7",
    "base_model_tp_plan": {"x": "y"},
    "trust_remote_code": True,
}
# Of a place: any junk; junk of the same type, or what stands elsewhere, which pass the first checks; …
CHANGES = ["replace", "kin", "kin", "swap", "drop", "nudge", "nudge", "add", "hostile", "wrap"]


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path to a value within a JSON value, that of the whole first."""
    yield above
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from places(item, (*above, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from places(item, (*above, i))


def junk() -> st.SearchStrategy[Any]:
    """One of the values that nothing expects; a copy, since further changes may be made within it."""
    return st.sampled_from(JUNK).map(copy.deepcopy)


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """The value at a path within a JSON value."""
    for step in path:
        value = value[step]
    return value


@st.composite
def mutated(draw: st.DrawFn, valid: Any, hostile: Sequence[str] = tuple(HOSTILE), most: int = 3) -> Any:
    """A valid JSON value with one to three changes: a value replaced, a key dropped, renamed, doubled or added."""
    value = copy.deepcopy(valid)
    for _ in range(draw(st.sampled_from([1, 1, *range(1, most + 1)]))):
        path = draw(st.sampled_from(list(places(value))[1:] or [()]))
        if not path:
            return draw(junk())
        holder = value
        for step in path[:-1]:
            holder = holder[step]
        key = path[-1]
        change = draw(st.sampled_from(CHANGES))
        kin = [other for other in JUNK if type(other) is type(holder[key])]
        if change == "replace" or (change == "kin" and not kin):
            holder[key] = draw(junk())
        elif change == "kin":
            holder[key] = copy.deepcopy(draw(st.sampled_from(kin)))
        elif change == "swap":
            holder[key] = copy.deepcopy(draw(st.sampled_from([at(value, path) for path in places(value) if path])))
        elif change == "drop":
            del holder[key]
        elif change == "nudge" and type(holder[key]) in (int, float):
            holder[key] += draw(st.sampled_from([-1000, -1, 1, 7, 0.5, 10**6]))
        elif change == "wrap":
            holder[key] = draw(st.sampled_from([[holder[key]], {"name": holder[key]}, str(holder[key])]))
        elif isinstance(holder, dict):
            name = draw(st.sampled_from(list(hostile) if change == "hostile" else ["x", "", "self", *map(str, holder)]))
            holder[name] = copy.deepcopy(HOSTILE[name]) if name in HOSTILE else draw(junk())
    return value


def to_json(value: Any) -> str:
    """Write a value as JSON, NaN and the stand-ins of what `json` does not write included."""
    text = json.dumps(value)
    return text.replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000).replace(f'"{DIGITS}"', "9" * 10_000)


def json_text(valid: Any, hostile: Sequence[str] = tuple(HOSTILE)) -> st.SearchStrategy[bytes]:
    """The content of a JSON file: mostly a mutated value, sometimes a damaged text."""
    good = to_json(valid).encode()
    values = mutated(valid, hostile).map(lambda value: to_json(value).encode())
    return weighted({values: 9, damaged(good): 1})


def weighted(shares: Mapping[st.SearchStrategy[Any], int]) -> st.SearchStrategy[Any]:
    """One of several strategies, some more often than others; `st.one_of` counts each of them once."""
    picks = [strategy for strategy, share in shares.items() for _ in range(share)]
    return st.sampled_from(range(len(picks))).flatmap(lambda i: picks[i])


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """A file that was cut off, or in which some bytes were changed, put in or left out."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        # Headers, which lie first, decide more than content.
        at = draw(st.one_of(st.integers(0, min(len(data), 64)), st.integers(0, len(data))))
        change = draw(st.sampled_from(["cut", "flip", "flip", "flip", "insert", "remove", "word"]))
        if change == "cut":
            del data[at:]
        elif change == "flip" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif change == "insert":
            data[at:at] = draw(st.binary(max_size=8))
        elif change == "remove":
            del data[at : at + draw(st.integers(1, 16))]
        elif change == "word":
            size = draw(st.sampled_from([2, 4, 8]))
            word = draw(st.sampled_from([0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), 2 ** (8 * size - 2)]))
            data[at : at + size] = word.to_bytes(size, draw(st.sampled_from(["little", "big"])))
    return bytes(data)


@st.composite
def safetensors(draw: st.DrawFn, valid: bytes) -> bytes:
    """A file of safetensors whose header, lengths or numbers were changed."""
    size = int.from_bytes(valid[:8], "little")
    header, numbers = json.loads(valid[8 : 8 + size]), bytearray(valid[8 + size :])
    kind = draw(st.sampled_from(["header", "header", "tensor", "tensor", "numbers", "bytes"]))
    if kind == "bytes":
        return draw(damaged(valid))
    names = [name for name in header if name != "__metadata__"]
    if kind == "header":
        header = draw(mutated(header))
    elif kind == "tensor":
        for _ in range(draw(st.integers(1, 3))):
            name = draw(st.sampled_from(names))
            change = draw(st.sampled_from(["drop", "extra", "shape", "dtype", "offsets", "rename", "overlap"]))
            entry = header.get(name)
            if entry is None:
                continue
            if change == "drop":
                del header[name]
            elif change == "extra":
                header["model.encoder.sources.xx.layer_norm.weight"] = dict(entry)
            elif change == "shape":
                entry["shape"] = draw(st.lists(st.sampled_from([0, 1, 2, 8, 16, -1, 2**32, 2**63]), max_size=4))
            elif change == "dtype":
                entry["dtype"] = draw(st.sampled_from(["F64", "F16", "BF16", "I64", "I32", "BOOL", "F8_E4M3", "X"]))
            elif change == "offsets":
                entry["data_offsets"] = draw(st.lists(st.sampled_from([0, 4, 64, len(numbers), 2**63]), max_size=3))
            elif change == "rename":
                header[draw(st.sampled_from(["", "x", "__metadata__", f"{name}.x"]))] = header.pop(name)
            else:
                entry["data_offsets"] = list(header.get(draw(st.sampled_from(names)), entry)["data_offsets"])
    else:
        number = draw(st.sampled_from([b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f"]))  # NaN, inf, max
        at = 4 * draw(st.integers(0, len(numbers) // 4 - 1))
        numbers[at : at + 4] = number
    text = to_json(header).encode()
    length = draw(st.sampled_from([len(text)] * 8 + [0, 1, len(text) - 1, len(text) + 1, 2**40, 2**63]))
    return length.to_bytes(8, "little") + text + bytes(numbers)
