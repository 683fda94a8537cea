"""Training arguments with the options of `MultiSourceTrainer`."""

from __future__ import annotations

from dataclasses import dataclass, field

from transformers import IntervalStrategy, SchedulerType, Seq2SeqTrainingArguments


@dataclass
class MultiSourceTrainingArguments(Seq2SeqTrainingArguments):
    """[`Seq2SeqTrainingArguments`] with the options of [`MultiSourceTrainer`].

    All fields of [`Seq2SeqTrainingArguments`] keep their meaning. One default differs: examples are grouped by length.

    Args:
        train_sampling_strategy: How training batches are made. With "group_by_length" a batch holds examples of similar
            length, by the longest source, which needs less padding.
        noam_scale: Factor of the Noam schedule, which decides `learning_rate` and `lr_scheduler_type`: the rate rises
            for `warmup_steps` updates to noam_scale * (d_model * warmup_steps)^-0.5, then falls with the inverse square
            root of the number of updates. None: `learning_rate` and `lr_scheduler_type` decide.
        patience: Number of evaluations without a better `metric_for_best_model` after which training stops. None:
            training is not stopped early.
        source_learning_rates: Learning rates of the encoders of single sources, by source name; a pretrained encoder
            beside new layers needs a smaller one. The schedule scales these rates like all others. Parameters that a
            source shares, such as embeddings tied to the decoder's, keep `learning_rate`.
        halve_after_epoch: Number of epochs with the full `learning_rate`; every later epoch has half the rate of the
            epoch before (Zoph & Knight 2016: 10). None: `lr_scheduler_type` decides.
        loss_per_sentence: Whether the training loss is the sum over the tokens of a sentence, averaged over sentences,
            as in the code of Zoph & Knight 2016. False: the average over tokens.
        max_tokens_per_batch: Upper limit of a training batch on each process, in tokens including padding: number of
            examples x longest sequence, source or target. It replaces `per_device_train_batch_size`; see
            [`TokenBatchSampler`]. None: `per_device_train_batch_size` decides.

    Raises:
        ValueError: If an option has a value that is not allowed, or lacks another argument that it needs; the message
            names both.
    """

    _VALID_DICT_FIELDS = [*Seq2SeqTrainingArguments._VALID_DICT_FIELDS, "source_learning_rates"]

    train_sampling_strategy: str = field(
        default="group_by_length",
        metadata={
            "help": "How training batches are made; 'group_by_length' puts examples of similar length, by their "
            "longest source, into a batch, which needs less padding (1.7 times faster on CPUs).",
            "choices": ["random", "sequential", "group_by_length", "batch_rebalance"],
        },
    )
    noam_scale: float | None = field(
        default=None,
        metadata={
            "help": "Factor of the Noam schedule, which replaces learning_rate and lr_scheduler_type: the rate rises "
            "for warmup_steps updates to noam_scale * (d_model * warmup_steps)^-0.5, then falls with the inverse "
            "square root of the number of updates."
        },
    )
    patience: int | None = field(
        default=None,
        metadata={
            "help": "Number of evaluations without a better metric_for_best_model after which training stops; needs "
            "load_best_model_at_end and eval_strategy."
        },
    )
    source_learning_rates: dict[str, float] | str | None = field(
        default=None,
        metadata={
            "help": "Learning rates of the encoders of single sources, by source name, such as {image: 1.0e-5}; the "
            "schedule scales them like learning_rate."
        },
    )
    halve_after_epoch: int | None = field(
        default=None,
        metadata={
            "help": "Number of epochs with the full learning_rate; every later epoch has half the rate of the epoch "
            "before; replaces lr_scheduler_type and warmup_steps, and cannot be combined with max_steps."
        },
    )
    loss_per_sentence: bool = field(
        default=False,
        metadata={
            "help": "Whether the training loss is the sum over the tokens of a sentence, averaged over sentences (Zoph "
            "& Knight 2016), instead of the average over tokens."
        },
    )
    max_tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "Upper limit of a training batch on each process, in tokens including padding (number of examples "
            "x longest sequence); replaces per_device_train_batch_size."
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noam_scale is not None:
            if not self.noam_scale > 0:
                raise ValueError(f"noam_scale must be above 0; got {self.noam_scale}.")
            if self.warmup_steps < 1:  # Transformers interprets a value below 1 as a share of all updates
                raise ValueError(f"noam_scale needs warmup_steps, 1 or more; got warmup_steps={self.warmup_steps}.")
        if self.halve_after_epoch is not None and self.noam_scale is not None:
            raise ValueError(
                f"noam_scale={self.noam_scale} and halve_after_epoch={self.halve_after_epoch} are two schedules of the "
                "learning rate: set one of them."
            )
        if self.halve_after_epoch is not None and self.max_steps > 0:
            raise ValueError(
                f"halve_after_epoch={self.halve_after_epoch} counts epochs: set num_train_epochs, not "
                f"max_steps={self.max_steps}."
            )
        if self.max_tokens_per_batch is not None:
            if self.max_tokens_per_batch < 1:
                raise ValueError(f"max_tokens_per_batch must be 1 or more; got {self.max_tokens_per_batch}.")
            if self.train_sampling_strategy != "group_by_length":
                raise ValueError(
                    "max_tokens_per_batch needs train_sampling_strategy='group_by_length'; got "
                    f"{str(self.train_sampling_strategy)!r}."
                )
        if self.patience is not None:
            if self.patience < 1:
                raise ValueError(f"patience must be 1 or more; got {self.patience}.")
            if not self.load_best_model_at_end or self.eval_strategy == IntervalStrategy.NO:
                raise ValueError(
                    f"patience={self.patience} needs load_best_model_at_end=True, metric_for_best_model and "
                    "eval_strategy 'steps' or 'epoch'."
                )

    @staticmethod
    def noam_peak(scale: float, d_model: int, warmup_steps: float) -> float:
        """Return the highest learning rate of the Noam schedule, which is reached at the end of the warm-up.

        Args:
            scale: The factor of the schedule; papers often call it the learning rate.
            d_model: Width of the model's states.
            warmup_steps: Updates of the warm-up.

        Returns:
            scale * (d_model * warmup_steps)^-0.5.
        """
        return float(scale * (d_model * warmup_steps) ** -0.5)

    def use_noam(self, d_model: int) -> None:
        """Set `learning_rate` and `lr_scheduler_type` to the Noam schedule, if `noam_scale` is set.

        Args:
            d_model: Width of the model's states.
        """
        if self.noam_scale is not None:
            self.learning_rate = self.noam_peak(self.noam_scale, d_model, self.warmup_steps)
            self.lr_scheduler_type = SchedulerType.INVERSE_SQRT
