"""Batches of examples of about the same length, and the one small Trainer subclass that uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler, SequentialSampler
from transformers import Seq2SeqTrainer
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from .collation import source_key
from .configuration_multisource import SOURCE_KEYS
from .sharding import shard

POOL_BATCHES = 50
LENGTH_KEYS = ("input_ids", "input_features", "input_values")


def length_keys(dataset: Any, source_names: Sequence[str]) -> list[tuple[int, int]]:
    """What to sort examples by so that padding is least: the longest source, then source 0.

    Args:
        dataset: Encoded examples. One that reads pictures or sound whenever it is asked for an example should have an
            attribute `text_lengths`, the lengths of every example's text sources: then nothing is read, and only these
            count.
        source_names: The model's sources, in order.

    Returns:
        One pair of lengths per example, in tokens, vectors or samples; pictures, all of one size, have length 0.
    """
    known = getattr(dataset, "text_lengths", None)
    if known is not None:
        return [(max(row, default=0), next(iter(row), 0)) for row in known]
    keys = [[source_key(i, name, key) for key in LENGTH_KEYS] for i, name in enumerate(source_names)]
    lengths = [[_length(example, of_source) for of_source in keys] for example in dataset]
    return [(max(row), row[0]) for row in lengths]


def _length(example: Mapping[str, Any], keys: Sequence[str]) -> int:
    return next((len(example[key]) for key in keys if example.get(key) is not None), 0)


class LengthBucketSampler(Sampler[int]):
    """Gives indices in an order in which consecutive batches hold examples of similar length.

    Shuffles all examples, sorts within pools of 50 batches, then shuffles the batches. The order depends on seed and
    epoch alone, so that a resumed run sees the same batches. The last batch is the one that may be smaller.

    Args:
        lengths: Sort key of every example.
        batch_size: Examples in a batch, over all processes that take batches in turn.
        seed: Of the shuffling.
    """

    def __init__(self, lengths: Sequence[tuple[int, ...]], batch_size: int, seed: int = 0) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next.

        Args:
            epoch: Counted from 0.
        """
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        pool = self.batch_size * POOL_BATCHES
        batches = []
        for start in range(0, len(order), pool):
            part = sorted(order[start : start + pool], key=self.lengths.__getitem__)
            batches += [part[i : i + self.batch_size] for i in range(0, len(part), self.batch_size)]
        whole = [batch for batch in batches if len(batch) == self.batch_size]
        rest = [batch for batch in batches if len(batch) < self.batch_size]
        for i in torch.randperm(len(whole), generator=generator).tolist():
            yield from whole[i]
        for batch in rest:
            yield from batch


def own_parameters(model: Any, name: str) -> list[torch.nn.Parameter]:
    """What is trained in one source's encoder, and in nothing else.

    Args:
        model: The multi-source model, wrapped as it may be.
        name: The source's.

    Returns:
        The parameters, in order.
    """
    mark = f"encoder.sources.{name}."
    named = [(key, weight) for key, weight in model.named_parameters(remove_duplicate=False) if weight.requires_grad]
    others = {id(weight) for key, weight in named if mark not in key}
    return list({id(weight): weight for key, weight in named if mark in key and id(weight) not in others}.values())


def give_rate(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter], rate: float) -> None:
    """Move parameters to groups of their own with another learning rate; nothing else about them changes.

    Args:
        optimizer: The optimizer, new.
        parameters: Some of its own.
        rate: The learning rate.
    """
    moved = {id(parameter) for parameter in parameters}
    for group in list(optimizer.param_groups):
        chosen = [parameter for parameter in group["params"] if id(parameter) in moved]
        if chosen:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in moved]
            optimizer.add_param_group({**group, "params": chosen, "lr": rate})


class MultiSourceTrainer(Seq2SeqTrainer):
    """[`Seq2SeqTrainer`] that groups by the longest source when `train_sampling_strategy="group_by_length"`.

    Stock grouping sees one length only, and stock code drops the columns of all sources but the first: the stock
    trainer works with these models, too, with `remove_unused_columns=False`.

    Args:
        *args: As [`Seq2SeqTrainer`].
        source_learning_rates: Learning rates of sources' encoders, by name, where they are not that of the arguments: a
            pretrained encoder beside new parts wants a smaller one. The schedule scales them like all others. What a
            source shares, such as embeddings tied to the decoder's, keeps the rate of the arguments.
        **kwargs: As [`Seq2SeqTrainer`].

    Raises:
        ValueError: If label smoothing is set in the configuration and in the arguments: only one would apply it; if
            `source_learning_rates` names no source of the model, or one with nothing of its own to train, or gives a
            rate below 0.
    """

    def __init__(self, *args: Any, source_learning_rates: Mapping[str, float] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        factor, own = self.args.label_smoothing_factor, self._config.label_smoothing
        if factor and own:
            raise ValueError(f"set label_smoothing={own} in the config or label_smoothing_factor={factor}, not both.")
        self.source_learning_rates = dict(source_learning_rates or {})
        for name, rate in self.source_learning_rates.items():
            if name not in self._config.source_names:
                allowed = ", ".join(self._config.source_names)
                raise ValueError(f"source_learning_rates: unknown source {name!r}; the sources are {allowed}.")
            if rate < 0:
                raise ValueError(f"source_learning_rates[{name!r}] must be 0 or more; got {rate}.")
            if not own_parameters(self.model, name):
                raise ValueError(f"source_learning_rates: source {name!r} has nothing of its own to train.")

    @property
    def _config(self) -> Any:
        model: Any = self.model
        return model.config

    def _set_signature_columns_if_needed(self) -> None:
        # Stock code keeps the columns that `forward` names; the other sources reach it through **kwargs.
        super()._set_signature_columns_if_needed()
        columns: Any = self._signature_columns
        for i, name in enumerate(self._config.source_names):
            columns += [column for key in SOURCE_KEYS if (column := source_key(i, name, key)) not in columns]

    def create_optimizer(self, model: Any = None) -> Any:
        """As stock; with FSDP2, of the parameters that this process holds a part of.

        Args:
            model: The model to train, if it is not the trainer's own.

        Returns:
            The optimizer.

        Raises:
            ValueError: If Accelerate's configuration has `fsdp_cpu_ram_efficient_loading`.
        """
        whole: Any = self.model if model is None else model
        if self.accelerator.is_fsdp2:
            shard(whole, self.accelerator.state.fsdp_plugin)
        made = self.optimizer is not None
        optimizer: Any = super().create_optimizer(model)
        for name, rate in self.source_learning_rates.items() if not made else ():
            give_rate(optimizer, own_parameters(whole, name), rate)
        return optimizer

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """As stock, but the model does not make logits that nobody reads.

        Args:
            model: The model, wrapped as it may be.
            inputs: A batch.
            return_outputs: Whether to return the model's outputs, too.
            num_items_in_batch: Number of labels over all batches of an update.

        Returns:
            The loss, or the loss and the outputs.
        """
        stock = return_outputs or self.label_smoother is not None or self.compute_loss_func is not None
        # ZeRO-3 gathers the output layer's weight only for that layer's own call, which would be left out.
        if not stock and not is_deepspeed_zero3_enabled():
            inputs = {**inputs, "skip_logits": True}
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        # Gathered from several processes, tied weights are copies of one another, and stock code would write them all.
        if state_dict is not None:
            tied = getattr(self.model, "all_tied_weights_keys", {})
            state_dict = {key: tensor for key, tensor in state_dict.items() if key not in tied}
        super()._save(output_dir, state_dict)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length" or dataset is None:
            return super()._get_train_sampler(train_dataset)
        lengths = length_keys(dataset, self._config.source_names)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        # Processes take batches in turn: what they take together should be alike, or all wait for the longest.
        return LengthBucketSampler(lengths, self.args.train_batch_size * self.args.world_size, seed)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        # Stock grouping would shuffle the evaluation, too: predictions would not come in the order of the examples.
        if self.args.train_sampling_strategy != "group_by_length" or eval_dataset is None:
            return super()._get_eval_sampler(eval_dataset)
        return SequentialSampler(eval_dataset)
