"""Trainer of a run, with its metrics, atomic checkpoints, and errors that name keys of the recipe."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers import EvalPrediction, PreTrainedModel, TrainerCallback
from transformers.trainer_callback import TrainerState

from hf_multisource import DataCollatorForMultiSource, MultiSourceProcessor, MultiSourceTrainer
from hf_multisource.data.encoding import Example
from hf_multisource.data.placeholder_constraint import placeholder_constraint
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.checkpoint_files import UNFINISHED, Keeper, find_change, find_fault
from hf_multisource.recipes.joined_dropout import JoinedDropout
from hf_multisource.recipes.masked_evaluation import (
    NUMBER,
    MaskedReferences,
    NumberedExamples,
    NumberingCollator,
)
from hf_multisource.recipes.processes import together
from hf_multisource.recipes.training_run import TrainingRun


class RunTrainer(MultiSourceTrainer):
    """[`MultiSourceTrainer`] that writes checkpoints atomically and stops if the training diverges.

    Args:
        *args: See [`MultiSourceTrainer`].
        **kwargs: See [`MultiSourceTrainer`].
    """

    masked: MaskedReferences | None = None  # set if the run masks texts: data for restoring hypotheses

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.keeper = Keeper(self.args.save_total_limit)
        self.args.save_total_limit = None  # `Keeper` deletes checkpoints; Transformers must not
        self._saving = False  # whether a checkpoint is being written

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on one batch, and raise an error if the loss is not finite on any process.

        Transformers' Trainer hides such a loss in its log.

        Args:
            *args: See Transformers' Trainer.
            **kwargs: See Transformers' Trainer.

        Returns:
            The loss.

        Raises:
            FloatingPointError: If the loss is nan or infinite.
        """
        loss = super().training_step(*args, **kwargs)
        spoiled = (~torch.isfinite(loss)).float()
        if self.args.world_size > 1:  # all processes must stop, or they would wait for each other
            everywhere: Any = self.accelerator.reduce(spoiled, "sum")
            spoiled = everywhere
        if spoiled:
            value = "not finite on another process" if torch.isfinite(loss) else loss.item()
            raise self._divergence(f"the loss of update {self.state.global_step + 1} is {value}")
        return loss

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, Any, Any]:
        """Evaluate one batch; in a run that masks texts, hypotheses must have the placeholders of their source.

        Args:
            model: See Transformers' Trainer.
            inputs: See Transformers' Trainer.
            prediction_loss_only: See Transformers' Trainer.
            ignore_keys: See Transformers' Trainer.
            **gen_kwargs: See Transformers' Trainer.

        Returns:
            Loss, hypotheses and labels; in a run that masks texts, the indices of the rows, (B, 1), in place of the
            labels.
        """
        if self.masked is None or NUMBER not in inputs:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys, **gen_kwargs)
        numbers = inputs.pop(NUMBER)
        options: Any = gen_kwargs or self._gen_kwargs
        longest = options.get("max_new_tokens") or options["max_length"] - 1
        tables = self.masked.tables_of(numbers.tolist(), longest)
        tokenizer: Any = self.processing_class.tokenizer  # type: ignore[union-attr]
        whole: Any = self.accelerator.unwrap_model(model)
        ends = whole.generation_config.eos_token_id
        constraint = placeholder_constraint(tables, tokenizer, ends, longest)
        loss, hypotheses, _ = super().prediction_step(
            model, inputs, prediction_loss_only, ignore_keys, **{**options, "logits_processor": constraint}
        )
        return loss, hypotheses, numbers[:, None]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log values, and raise an error if the training has diverged.

        Args:
            logs: The values to log.
            start_time: When training started, in seconds.

        Raises:
            FloatingPointError: If the loss of all updates since the last call is 0, a sign of divergence.
        """
        super().log(logs, start_time)
        if logs.get("loss") == 0.0:
            raise self._divergence(f"the loss is exactly 0 up to update {self.state.global_step}")

    def check_weights(self) -> None:
        """Check that all weights are finite before they are saved.

        Raises:
            FloatingPointError: If a weight is nan or infinite.
        """
        model: Any = self.model
        spoiled = []
        for name, weight in model.named_parameters():
            own = weight.to_local() if hasattr(weight, "to_local") else weight  # with FSDP, the local shard
            if not torch.isfinite(own).all():
                spoiled = [name]
                break
        if self.args.world_size > 1:
            spoiled = gather_object(spoiled)
        if spoiled:
            raise self._divergence(f"weights of {spoiled[0]} are not finite after update {self.state.global_step}")

    def create_optimizer(self, model: Any = None) -> Any:
        """Create the optimizer; errors name the keys of the recipe.

        Args:
            model: The model to train, if it is not the trainer's own.

        Returns:
            The optimizer.

        Raises:
            ValueError: If the options do not fit the optimizer.
        """
        with _named("optimizer", "training.optim and training.optim_args"):
            return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Create the learning rate schedule; errors name the keys of the recipe.

        Args:
            num_training_steps: Number of updates of the whole training.
            optimizer: The optimizer, if it is not the trainer's own.

        Returns:
            The schedule.

        Raises:
            ValueError: If the options do not fit the schedule.
        """
        with _named("schedule", "training.lr_scheduler_type and training.lr_scheduler_kwargs"):
            return super().create_scheduler(num_training_steps, optimizer)

    def _load_best_model(self) -> None:
        best = Path(str(self.state.best_model_checkpoint))

        def check() -> None:
            if (fault := find_fault(best) or find_change(best)) is not None:
                raise ValueError(
                    f"{best} has the best model of the run, but is damaged ({fault}): restore it from a copy and start "
                    "again with --resume; no model has been saved"
                )

        together(self.args, check)
        super()._load_best_model()

    def _divergence(self, what: str) -> FloatingPointError:
        return FloatingPointError(
            f"training diverged: {what}; start again in another output_dir with a lower learning_rate or noam_scale "
            f"(the highest learning rate was {self.args.learning_rate:g})"
        )

    def _get_output_dir(self, trial: object) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder) / UNFINISHED) if self._saving else folder

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        self.check_weights()
        folder, name = Path(super()._get_output_dir(trial)), f"checkpoint-{self.state.global_step}"
        if self.args.should_save:  # remove files that an earlier start may have left
            shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._saving = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._saving = False
        if self.state.best_global_step:  # Transformers has recorded a path in the temporary folder
            best = folder / f"checkpoint-{self.state.best_global_step}"
            if best.name == name or best.exists():
                self.state.best_model_checkpoint = str(best)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            self.state.save_to_json(str(folder / UNFINISHED / name / "trainer_state.json"))
            self.keeper.complete(folder / UNFINISHED / name, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            super()._push_from_checkpoint(str(folder / name))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Do nothing, because `_save_checkpoint` pushes the checkpoint after renaming it."""


class Beginning(TrainerCallback):
    """Callback that calls a function once model, optimizer and schedule are ready, before the first update.

    Args:
        call: The function.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def on_train_begin(self, *args: object, **kwargs: object) -> None:
        """Call the function.

        Args:
            *args: See `TrainerCallback`.
            **kwargs: See `TrainerCallback`.
        """
        self.call()


class Epochs(TrainerCallback):
    """Callback that passes the index of each epoch to a function.

    Args:
        call: The function.
    """

    def __init__(self, call: Callable[[int], None]) -> None:
        self.call = call

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: object) -> None:
        """Call the function.

        Args:
            args: See `TrainerCallback`.
            state: See `TrainerCallback`. In a resumed training, its epoch has a fraction.
            control: See `TrainerCallback`.
            **kwargs: See `TrainerCallback`.
        """
        self.call(int(state.epoch or 0))


def build_trainer(
    run: TrainingRun,
    model: PreTrainedModel,
    processor: MultiSourceProcessor,
    encoded: Mapping[str, Sequence[Example]],
    masked: MaskedReferences | None = None,
) -> RunTrainer:
    """Build the trainer, which evaluates with all metrics of the recipe that do not need the sources.

    Args:
        run: The run.
        model: The model.
        processor: The run's processor.
        encoded: Examples for the collator, by role ("train" and "dev").
        masked: References and placeholders of the dev split, if the run masks texts.

    Returns:
        The trainer.
    """
    measured = [name for name in run.recipe.data.metrics if not METRICS[name].needs_sources]

    def measure(prediction: EvalPrediction) -> dict[str, float]:
        # References are decoded from the labels, which have the same order as the predictions for any sampler.
        padding = processor.tokenizer.pad_token_id

        def read(ids: object) -> list[str]:
            known = np.asarray(ids)
            return processor.batch_decode(np.where(known < 0, padding, known), skip_special_tokens=True)

        if masked is None:
            texts = read(prediction.predictions), read(prediction.label_ids)
        else:
            texts = masked.restored(read(prediction.predictions), np.asarray(prediction.label_ids).ravel().tolist())
        return {name: METRICS[name].measure(*texts).score() for name in measured}

    collator = DataCollatorForMultiSource if masked is None else NumberingCollator
    trainer = RunTrainer(
        model=model,
        args=run.args,
        train_dataset=encoded["train"],
        eval_dataset=encoded["dev"] if masked is None else NumberedExamples(encoded["dev"]),
        data_collator=collator(processor, model=model if run.args.label_smoothing_factor else None),
        processing_class=processor,
        compute_metrics=measure,
    )
    trainer.masked = masked
    if isinstance(encoded["train"], JoinedDropout):
        trainer.add_callback(Epochs(encoded["train"].set_epoch))
    return trainer


def run_updates(trainer: RunTrainer, checkpoint: Path | None, begin: Callable[[], None]) -> None:
    """Train to the end.

    Args:
        trainer: The trainer. At the end it holds the last model, or the best one with `load_best_model_at_end`.
        checkpoint: The checkpoint from which to continue; None: from the beginning.
        begin: Called when the optimizer and the schedule are ready, before the first update.
    """
    args, folder = trainer.args, Path(str(trainer.args.output_dir))
    trainer.keeper.start(checkpoint)
    state: Any = TrainerState.load_from_json(f"{checkpoint}/trainer_state.json") if checkpoint else None
    stopped = checkpoint and state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]
    if checkpoint is not None and stopped and state.max_steps >= args.max_steps:
        # The run was killed after its last update. `Trainer.train` would make one more update.
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        begin()
        trainer.state = state
        trainer._load_from_checkpoint(str(folder / Path(best).name if best else checkpoint))
        if args.process_index == 0:
            trainer.keeper.tidy(folder, checkpoint.name, state.best_model_checkpoint)
    else:
        trainer.add_callback(Beginning(begin))
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


@contextmanager
def _named(what: str, keys: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"the {what} cannot be made from {keys}: {reason}") from error
