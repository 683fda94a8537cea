"""`hf-multisource graph`: run a graph of corpora and models that one YAML file declares."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_multisource.cli import filter as filter_command
from hf_multisource.cli import prepare, score, translate
from hf_multisource.cli.command import PROGRAM, add_command, make_main, new_app
from hf_multisource.data.files import write_text
from hf_multisource.evaluation.graph_engine import Engine
from hf_multisource.evaluation.graph_stages import Stage, describe_stages, draw_graph, stages_of
from hf_multisource.recipes.graph import count_rows, load_graph

NAME = "graph"
DOT = (".dot", ".gv")
# Command of a step -> its function and settings.
COMMANDS: dict[str, tuple[Any, dict[str, Any]]] = {
    prepare.NAME: (prepare.prepare, {}),
    filter_command.NAME: (filter_command.filter_, {}),
    score.NAME: (score.score, score.SETTINGS),
    translate.NAME: (translate.translate, translate.SETTINGS),
}


def graph(
    file: Annotated[Path, typer.Argument(help="YAML file that declares the graph.")],
    dry_run: Annotated[
        bool, typer.Option("--dry_run", help="Only check the graph, and list the steps with rows and times.")
    ] = False,
    until: Annotated[str | None, typer.Option("--until", help="Run this step and those that it needs.")] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Seed of all trainings; everything is written in the folder seed-N of `work`."),
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option("--draw", help="Only check the graph, and draw it into this file: Graphviz (.dot) or Mermaid."),
    ] = None,
) -> None:
    """Run or resume a graph: corpora, held-out sets, and steps that train, translate, prepare, filter, mix and score.

    \b
        hf-multisource graph my_graph.yaml --dry_run
        hf-multisource graph my_graph.yaml --draw graph.mmd
        hf-multisource graph my_graph.yaml --until first_model
        hf-multisource graph my_graph.yaml
        hf-multisource graph my_graph.yaml --seed 2

    Each step writes a folder in `work`. The same command continues an interrupted run, and skips finished steps. If the
    settings, inputs or outputs of a finished step have changed, the command names the step and overwrites nothing. The
    text of the held-out sets is removed from every corpus that a training reads.
    """
    loaded = load_graph(file, seed)
    counts = count_rows(loaded)
    stages = stages_of(loaded)
    for stage in stages.values():
        check_options(stage)
    if until is not None and until not in stages:
        raise ValueError(f"--until {until}: there is no such step; steps that run: {', '.join(stages)}")
    engine = Engine(loaded.work, stages)
    if draw is not None:
        write_text(draw, draw_graph(loaded, dot=draw.suffix in DOT))
        print(draw)
    if dry_run:
        print(describe_stages(loaded, stages, counts, engine.states()))
    if draw is None and not dry_run:
        try:
            engine.run(until)
        except KeyboardInterrupt as error:  # Ctrl-C or SIGTERM
            raise type(error)("the same command continues the graph") from error


def check_options(stage: Stage) -> None:
    """Check the options of a step's command, except for trainings, whose recipe has already been checked.

    Args:
        stage: The stage.

    Raises:
        ValueError: If an option is unknown, or its value is not allowed; the message names the step and the option.
    """
    step = stage.step
    if step.kind not in COMMANDS:
        return
    function, settings = COMMANDS[step.kind]
    app = new_app()
    add_command(app, step.kind, function, **settings)
    command = typer.main.get_command(app)
    allowed = [str(param.name) for param in command.params if str(param.name) not in ("help", "model", "run", "data")]
    for key in step.options:
        if key not in allowed:
            raise ValueError(
                f"steps.{step.name}.options: unknown option {key!r} of {step.kind}; allowed: {', '.join(allowed)}"
            )
    called = (step.kind, f"hf_multisource.cli.{step.kind}")
    words = next(list(words) for words in stage.commands if set(called) & set(words))
    names = [i for i, word in enumerate(words) if word in called]
    message = io.StringIO()
    try:
        with redirect_stderr(message):
            command.make_context(f"{PROGRAM} {step.kind}", words[names[0] + 1 :])
    except SystemExit as error:
        reason = message.getvalue().strip().rpartition(f"{step.kind}: ")[2]
        raise ValueError(f"steps.{step.name}.options: {reason}") from error


main = make_main(NAME, graph)

if __name__ == "__main__":
    main()
