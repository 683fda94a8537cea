"""How the command reads its command line: one spelling of options, one line for a wrong value."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from hf_multisource.cli.app import main
from hf_multisource.cli.command import expand

COMMANDS = [
    "attach",
    "average",
    "calibrate",
    "card",
    "catalogues",
    "degrade",
    "filter",
    "graph",
    "localize",
    "plot",
    "precompute",
    "prepare",
    "push",
    "recipes",
    "reproduce",
    "results",
    "score",
    "serve",
    "tokenizer",
]
COMMANDS += ["train", "translate"]
PENALTY = "hf-multisource translate: --length_penalty must be a number; got 'x'"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["--attention-plot", "3", "5"], ["--attention_plot", "3", "--attention_plot", "5"]),
        (["--attention_plot"], ["--attention_plot", "first"]),
        (["--attention-plot", "--num-beams", "4"], ["--attention_plot", "first", "--num_beams", "4"]),
        (["--sources=en", "de", "--a-b=c-d"], ["--sources=en", "--sources", "de", "--a_b=c-d"]),
        (["runs/a-b", "--optimize", "int8"], ["runs/a-b", "--optimize", "int8"]),
        (["runs/a", "--optimize"], ["runs/a", "--optimize", "best"]),
        ([], []),
    ],
)
def test_options_have_hyphens_or_underscores_one_value_several_or_none(given: list[str], read: list[str]) -> None:
    assert expand(given, {"attention_plot", "sources"}, {"attention_plot": "first", "optimize": "best"}) == read


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "x", "--num_beams", "two"], "hf-multisource score: --num_beams must be a whole number; got 'two'"),
        (["score", "x", "--num-beams=1.5"], "hf-multisource score: --num_beams must be a whole number; got '1.5'"),
        (
            ["translate", "x", "--length_penalty=x"],
            "hf-multisource translate: --length_penalty must be a number; got 'x'",
        ),
        (["score"], "hf-multisource score: RUN is missing"),
        (["degrade", "x", "--out", "y", "--how", "share"], "hf-multisource degrade: --source is missing"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"{message}\n"


def test_an_unknown_command_or_option_is_named_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, hint in ((["scor"], "Did you mean 'score'?"), (["score", "x", "--optimise"], "--optimize")):
        with pytest.raises(SystemExit):
            main(arguments)
        assert hint in capsys.readouterr().err


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"{version('hf-multisource')}\n"


def test_help_shows_examples_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["-h"])
    listed = capsys.readouterr().out.split("Commands:")[1].splitlines()
    assert sorted(line.split()[0] for line in listed if line.strip()) == COMMANDS
    for name in COMMANDS:
        path = [name, "row"] if name == "results" else [name]
        main([*path, "--help"])
        assert f"\n      hf-multisource {' '.join(path)}" in capsys.readouterr().out
