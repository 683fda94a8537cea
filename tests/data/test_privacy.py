"""Secrets and paths of this machine: how they are found, masked and shortened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cpu_time import cpu_seconds
from hf_multisource.data.privacy import (
    find_local_paths,
    find_secrets,
    is_secret_key,
    mask_secrets,
    mask_words,
    publishable,
    publishable_command,
    refuse_secrets,
    shorten_path,
    shorten_paths,
)

HF = "hf_" + "aB3d" * 8
SECRETS = [
    HF,
    "api_org_" + "aB3d" * 6,
    "ghp_" + "aB3d" * 9,
    "github_pat_11" + "aB3d_" * 9,
    "AKIA" + "AB3D" * 4,
    "sk-proj-" + "aB3d" * 8,
    "xoxb-1234-5678-abcdef",
    "Bearer " + "aB3d" * 8,
    "https://me:pass@host/x",
    "wandb: key " + "a1" * 20,
    "--hub_token abc123def",
    "--training.hub_token=abc123def",
    'api_key: "mine-alone"',
    '"password": "mine-alone"',
    "WANDB_API_KEY=abc123def",
    "-----BEGIN RSA PRIVATE KEY-----\nMII",
]


@pytest.mark.parametrize("text", SECRETS)
def test_what_looks_like_a_secret_is_found_and_masked(text: str) -> None:
    text = f"a line\nbefore {text} after"
    ((position, what), *_) = find_secrets(text)
    assert text[position:] in text.split("before ", 1)[1] or position == text.index("://")
    masked = mask_secrets(text)
    assert "***" in masked
    assert "***" in what
    for secret in ("aB3d", "AB3D", "abc123def", "mine-alone", "a1a1", "5678", "pass@", "MII"):
        assert secret not in masked + what
    assert not list(find_secrets(masked)) or "PRIVATE KEY" in text


@pytest.mark.parametrize(
    "text",
    [
        "hf_multisource.encoders",
        "sk-en-opus-2020-multilingual-sentences",
        '"pad_token": "<pad>", "eos_token": "</s>", "decoder_start_token": "<s>"',
        '"token": 12345678, "password": 31415',
        '{"null_token": "<NULL>00", "max_tokens_per_batch": "12345678a"}',
        "def load(token: str | None = None) -> None: get(token=token)",
        "https://huggingface.co/datasets/org/name:config",
        "commit " + "a1" * 20,
        "$HF_TOKEN, token: <yours>",
        "Bearer authentication",
    ],
)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    assert list(find_secrets(text)) == []
    assert mask_secrets(text) == text


def test_secret_keys_are_told_from_the_tokens_of_a_tokenizer() -> None:
    for key in ("token", "hub_token", "training.hub_token", "HF_TOKEN", "api_key", "apiKey", "password", "secret"):
        assert is_secret_key(key), key
    for key in ("pad_token", "null_token", "image_token", "vocab_size", "max_tokens_per_batch", "tokenizer", "tokens"):
        assert not is_secret_key(key), key


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        (["--hub_token", "short", "--seed", "2"], ["--hub_token", "***", "--seed", "2"]),
        (["--token=short"], ["--token=***"]),
        (["--training.api_key", "one", "two", "--seed", "2"], ["--training.api_key", "***", "***", "--seed", "2"]),
        (["HF_TOKEN=x", "python"], ["HF_TOKEN=***", "python"]),
        (["--origin", f"see {HF}"], ["--origin", "see hf_***"]),
        (["--null_token", "<NULL>"], ["--null_token", "<NULL>"]),
    ],
)
def test_secrets_of_a_command_line_are_masked(words: list[str], masked: list[str]) -> None:
    assert mask_words(words) == masked


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"training": {"hub_token": "short"}}, r"^'training\.hub_token' is a secret"),
        ({"model": {"sources": [{"encoder": {"api_key": "x"}}]}}, r"^'model\.sources\[0\]\.encoder\.api_key' is a"),
        ({"data": {"origin": f"by {HF}"}}, r"^data\.origin holds a Hugging Face token \(hf_\*\*\*\), and recipes"),
        ({"model": {HF: 1}}, r"^model holds a Hugging Face token"),
    ],
)
def test_a_secret_in_a_recipe_is_refused_and_not_repeated(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        refuse_secrets(value)
    assert "aB3d" not in str(caught.value)
    assert "hf auth login" in str(caught.value)
    assert "HF_TOKEN" in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/data/train.en",
        "/Users/me/x",
        "/root/x",
        "/tmp/a",
        "/mnt/disk/a",
        r"C:\Users\me\x",
        r"C:\\Users\\me\\x",
        "D:/data/x",
        "../../home/me/x",
    ],
)
def test_local_paths_are_found(path: str) -> None:
    assert list(find_local_paths(f'one\n"{path}" two {path}.')) == [(5, path), (len(path) + 11, path)]


@pytest.mark.parametrize(
    "text",
    [
        "https://host.org/home/me/x",
        "runs/home/x",
        "data/tmp/x",
        "and/or",
        "./tmp/x",
        "../data/x",
        "/etc",
        "~/x",
        r"a:\p{L}",
    ],
)
def test_other_paths_are_no_local_ones(text: str) -> None:
    assert list(find_local_paths(text)) == []


def test_the_home_the_working_directory_and_further_folders_are_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/odd/me")
    monkeypatch.chdir(tmp_path)
    for path in ("/odd/me/x", f"{os.getcwd()}/x", "/strange/run/x"):
        assert [found for _, found in find_local_paths(f"in {path}", "/strange/run")] == [path]


def test_paths_are_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    for path, short in {
        f"{os.getcwd()}/runs/a": "runs/a",
        "/home/me/runs/a b": "~/runs/a b",
        "/home/other/project/runs/a": "runs/a",
        "/Users/other/a": "a",
        "/odd/place/of/data": "of/data",
        r"C:\Users\me\project\runs\a": "runs/a",
        "runs/a": "runs/a",
        "../a": "../a",
        "org/name": "org/name",
    }.items():
        assert shorten_path(path) == short
    assert shorten_paths("from /home/me/x.en, see https://host/home/me") == "from ~/x.en, see https://host/home/me"


def test_a_command_is_published_without_secrets_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    command = f"hf-multisource train {os.getcwd()}/my.yaml --hub_token x --path=/home/me/d --load /odd/a/b/c --seed 2"
    assert publishable_command(command) == (
        "hf-multisource train my.yaml --hub_token '***' '--path=~/d' --load b/c --seed 2"
    )
    same = "hf-multisource score  runs/x --attention_plot 'a b'"
    assert publishable_command(same) == same, "a command is not rewritten if there is nothing to hide"
    assert publishable_command(f"broken ' {HF}") == "broken ' hf_***"


@pytest.mark.parametrize("quote", ["", "'", '"'])
@pytest.mark.parametrize(
    ("path", "short"),
    [
        (r"C:\Users\jane\secret\r.yaml", "secret/r.yaml"),
        (r"C:\\Users\\jane\\secret\\r.yaml", "secret/r.yaml"),
        (r"C:\Users\jane\secret", "secret"),
        (r"D:\other(1)\jane+joe\secret\r.yaml", "secret/r.yaml"),
        (r"\\server\share\jane\secret\r.yaml", "secret/r.yaml"),
        ("E:/jane/secret/r.yaml", "secret/r.yaml"),
    ],
)
def test_a_windows_path_in_a_command_is_shortened_with_and_without_quotes(path: str, short: str, quote: str) -> None:
    word = quote + path + quote
    command = f"hf-multisource train {word} --path={word} --hub_token {HF} --seed 2"
    published = f"hf-multisource train {short} --path={short} --hub_token '***' --seed 2"
    assert publishable_command(command) == published


@pytest.mark.parametrize(
    ("command", "published"),
    [
        (r"train /home/jane/my\ secret\ place/a/r.yaml", "train a/r.yaml"),
        (r"""train --origin "the \"best\"" --load /odd/a/b/c""", """train --origin 'the "best"' --load b/c"""),
        (r"train --placeholders '\{\d+\}' --seed 2", r"train --placeholders '\{\d+\}' --seed 2"),
    ],
)
def test_a_backslash_escapes_in_a_command_without_windows_paths(command: str, published: str) -> None:
    assert publishable_command(command) == published


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("copied from /home/jane doe/project x/data", "copied from project x/data"),
        ("copied from /home/jane doe/a/b/c, then a/b.", "copied from b/c, then a/b."),
        ("as /Users/jane doe/x y/z w/data.en.", "as z w/data.en."),
        ("from /home/jane/deep/x and then a/b", "from deep/x and then a/b"),
        ("from /home/jane/deep/x. Input/output of a/b", "from deep/x. Input/output of a/b"),
        ("from /home/jane/x to ./a/b, ../c or ~/d", "from x to ./a/b, ../c or ~/d"),
        ("from /home/jane/deep/x ./a/b", "from deep/x ./a/b"),
        ("from /home/jane/deep/x/ en/de", "from deep/x en/de"),
        ("/home/jane/x\nen/de", "x\nen/de"),
        ("copied from /home/jane van doe/data", "copied from . van doe/data"),  # the limit in docs/publishing.md
    ],
)
def test_a_blank_before_a_word_with_a_slash_belongs_to_the_path(text: str, short: str) -> None:
    assert shorten_paths(text) == short


def test_settings_are_published_without_secrets_and_places() -> None:
    settings = {
        "encoder": "/home/me/a/b/c",
        "list": [HF, 1, None],
        "hub_token": "x",
        "use_auth_token": False,
        "lr": 0.5,
    }
    assert publishable(settings) == {
        **{"encoder": "b/c", "list": ["hf_***", 1, None], "hub_token": "***", "use_auth_token": False, "lr": 0.5}
    }


@pytest.mark.parametrize(
    "piece", ["a", "hf_", "://", "a:", "sk-", "/home", "token ", "../", "a:/", "bearer ", "x:\\", "/home/a b", " b/"]
)
def test_a_long_text_is_searched_in_linear_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    assert cpu_seconds(lambda: [*find_secrets(text), *find_local_paths(text)], 5) < 5


def test_several_paths_in_one_word_and_paths_that_are_keys_are_shortened() -> None:
    words = ["--sources=en=/home/joe/x,de=/home/joe/y", "en=/home/joe/x,de=/home/joe/y"]
    assert publishable_command(" ".join(words)) == "--sources=en=x,de=y en=x,de=y"
    assert publishable({"/home/joe/deep/x": ["/home/joe/one:/home/joe/two"]}) == {"deep/x": ["one:two"]}
