"""Batch samplers that group examples of similar length, and a subclass of Seq2SeqTrainer that uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from inspect import signature
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import ModelCard
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset, Sampler, SequentialSampler
from transformers import EarlyStoppingCallback, Seq2SeqTrainer
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.trainer_utils import seed_worker

from .arguments import MultiSourceTrainingArguments
from .collation import DataCollatorForMultiSource
from .inference import keep_freed_memory
from .matrix_products import fast_products, uses_plain_attention
from .model_card import CARD, describe_in_card
from .sharding import shard
from .source_kinds import example_length

POOL_BATCHES = 50  # batches within which examples are sorted: little padding, but the batches still vary between epochs


def length_keys(dataset: Any, source_names: Sequence[str]) -> np.ndarray:
    """Return the sort keys for length grouping: the longest source, then source 0.

    Args:
        dataset: Encoded examples. A dataset that reads pictures or sound lazily should have an attribute
            `text_lengths`, the lengths of every example's text sources; then no example is read, and only the lengths
            of texts are used.
        source_names: The model's sources, in order.

    Returns:
        Keys (N, 2) of the N examples, in tokens, vectors or samples; pictures have length 0, because their size is
        constant.
    """
    known = getattr(dataset, "text_lengths", None)
    if known is None:
        known = [[example_length(example, i, name) for i, name in enumerate(source_names)] for example in dataset]
    if not isinstance(known, np.ndarray):
        known = [(max(row, default=0), next(iter(row), 0)) for row in known]
        return np.array(known, dtype=np.int32).reshape(-1, 2)
    return np.stack([known.max(axis=1, initial=0), known[:, 0] if known.shape[1] else np.zeros(len(known))], axis=1)


def token_keys(dataset: Any, source_names: Sequence[str]) -> np.ndarray:
    """Return the sort keys for batches limited by tokens: the longest sequence, then the keys of `length_keys`.

    Args:
        dataset: As in `length_keys`. A dataset with `text_lengths` should also have `label_lengths`, the lengths of
            every example's labels; otherwise all examples are read.
        source_names: The model's sources, in order.

    Returns:
        Keys (N, 3): for each example, the length of its longest sequence among sources and labels, of its longest
        source, and of source 0.
    """
    labels = getattr(dataset, "label_lengths", None)
    if labels is None:
        labels = [0 if (row := example.get("labels")) is None else len(row) for example in dataset]
    keys = length_keys(dataset, source_names)
    return np.concatenate([np.maximum(keys[:, :1], np.asarray(labels, dtype=np.int32)[:, None]), keys], axis=1)


def _as_keys(lengths: Sequence[Sequence[int]] | np.ndarray) -> np.ndarray:
    """Convert sort keys to an array (N, K), also for N = 0."""
    return np.asarray(lengths) if len(lengths) else np.zeros((0, 1), np.int32)


def sort_by_length(indices: np.ndarray, lengths: np.ndarray, *, longest_first: bool = False) -> np.ndarray:
    """Sort examples by their keys; the sort is stable.

    Args:
        indices: Indices of the examples.
        lengths: Keys (N, K) of all examples, the most important key first.
        longest_first: Whether to sort in descending order.

    Returns:
        The sorted indices.
    """
    keys = lengths[indices] * (-1 if longest_first else 1)
    return indices[np.lexsort(keys.T[::-1])]


class LengthBucketSampler(Sampler[int]):
    """Sampler that orders examples so that each batch contains examples of similar length.

    The sampler shuffles all examples, sorts them within pools of 50 batches, and shuffles the batches. The order
    depends only on seed and epoch, so that a resumed run gets the same batches. Only the last batch can be smaller.

    Args:
        lengths: Sort keys of every example, (N, K) lengths in tokens.
        batch_size: Examples per batch, summed over all processes.
        seed: Seed of the shuffling.
    """

    def __init__(self, lengths: Sequence[Sequence[int]] | np.ndarray, batch_size: int, seed: int = 0) -> None:
        self.lengths = _as_keys(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order of the next iteration.

        Args:
            epoch: Index of the epoch, from 0.
        """
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).numpy()
        pool = self.batch_size * POOL_BATCHES
        batches = []
        for start in range(0, len(order), pool):
            part = sort_by_length(order[start : start + pool], self.lengths).tolist()
            batches += [part[i : i + self.batch_size] for i in range(0, len(part), self.batch_size)]
        whole = [batch for batch in batches if len(batch) == self.batch_size]
        rest = [batch for batch in batches if len(batch) < self.batch_size]
        for i in torch.randperm(len(whole), generator=generator).tolist():
            yield from whole[i]
        for batch in rest:
            yield from batch


class TokenBatchSampler(Sampler[list[int]]):
    """Batch sampler that limits the number of tokens per batch: many short examples, or few long examples.

    The size of a batch is its number of examples times the longest of all their sequences, as with fairseq's
    `--max-tokens` (Ott et al. 2019, https://doi.org/10.18653/v1/N19-4009). All examples are sorted by length, with
    random order of equal lengths, and split into batches, which are shuffled. The order depends only on seed and epoch,
    so that a resumed run gets the same batches; the number of batches is the same in every epoch.

    Consecutive batches are distributed to the processes. The batches of one step have similar lengths, their numbers of
    examples differ by at most one, and every process gets a batch, so that no example is dropped and no process waits.
    Only if every batch has a single example, some processes may have no batch in the last step; Accelerate then repeats
    batches.

    Args:
        lengths: Sort keys of every example, (N, K) lengths in tokens; the first key, the longest sequence, determines
            the size of batches.
        max_tokens: Maximum size of a batch on each process, in tokens including padding.
        processes: Number of processes.
        seed: Seed of the shuffling.

    Raises:
        ValueError: If a single example is larger than `max_tokens`.
    """

    def __init__(
        self, lengths: Sequence[Sequence[int]] | np.ndarray, max_tokens: int, processes: int = 1, seed: int = 0
    ) -> None:
        self.lengths = _as_keys(lengths)
        self.processes = processes
        self.seed = seed
        self.epoch = 0
        first = self.lengths[:, 0]
        if len(lengths) and first.max() > max_tokens:
            longest = int(first.argmax())
            raise ValueError(
                f"max_tokens_per_batch is {max_tokens}; example {longest} has a sequence of {first[longest]} tokens."
            )
        counted = np.sort(np.maximum(first, 1))[::-1]
        self.together: list[int] = []  # examples per step, over all processes, longest first
        start = 0
        while start < len(counted):
            self.together.append(min(processes * (max_tokens // int(counted[start])), len(counted) - start))
            start += self.together[-1]
        if len(self.together) > 1 and self.together[-1] < self.together[-2]:  # the last step may have too few examples
            both = sum(self.together[-2:])
            self.together[-2:] = [both - both // 2, both // 2]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the batches of the next iteration.

        Args:
            epoch: Index of the epoch, from 0.
        """
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(min(number, self.processes) for number in self.together)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).numpy()
        order = sort_by_length(order, self.lengths, longest_first=True).tolist()
        ends = list(accumulate(self.together))
        for k in torch.randperm(len(ends), generator=generator).tolist():
            part = order[ends[k] - self.together[k] : ends[k]]
            batches = min(self.processes, len(part))
            for i in range(batches):
                yield part[len(part) * i // batches : len(part) * (i + 1) // batches]


def own_parameters(model: Any, name: str) -> list[torch.nn.Parameter]:
    """Return the trainable parameters of a source's encoder that no other module shares.

    Args:
        model: The multi-source model, which can be wrapped.
        name: The source's name.

    Returns:
        The parameters, in order.
    """
    mark = f"encoder.sources.{name}."
    named = [(key, weight) for key, weight in model.named_parameters(remove_duplicate=False) if weight.requires_grad]
    others = {id(weight) for key, weight in named if mark not in key}
    return list({id(weight): weight for key, weight in named if mark in key and id(weight) not in others}.values())


def give_rate(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter], rate: float) -> None:
    """Move parameters to new parameter groups with another learning rate; other settings of the groups are copied.

    Args:
        optimizer: The optimizer, before its first step.
        parameters: Some of the optimizer's parameters.
        rate: The learning rate.
    """
    moved = {id(parameter) for parameter in parameters}
    for group in list(optimizer.param_groups):
        chosen = [parameter for parameter in group["params"] if id(parameter) in moved]
        if chosen:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in moved]
            optimizer.add_param_group({**group, "params": chosen, "lr": rate})


class PatienceCallback(EarlyStoppingCallback):
    """`EarlyStoppingCallback` whose count of evaluations without improvement continues when training is resumed."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the count from the checkpoint, if training is resumed.

        Args:
            args: The training arguments.
            state: The trainer's state; that of the checkpoint if training is resumed.
            control: Flags by which callbacks stop training.
            **kwargs: Not used.
        """
        super().on_train_begin(args, state, control, **kwargs)
        for stored in state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {}).items():
            setattr(self, *stored)


@contextmanager
def own_forward(model: Any) -> Iterator[None]:
    """Undo, for a while, the replacement of a model's `forward` by Accelerate for mixed precision.

    Args:
        model: The model, not wrapped. If Accelerate has not replaced the `forward` of its class, nothing changes.

    Yields:
        Nothing.
    """
    original = getattr(model.__dict__.get("_original_forward"), "__func__", None)
    replaced = model.__dict__.pop("forward", None) if original is type(model).forward else None
    try:
        yield
    finally:
        if replaced is not None:
            model.forward = replaced


class MultiSourceTrainer(Seq2SeqTrainer):
    """[`Seq2SeqTrainer`] for multi-source models, with the options of [`MultiSourceTrainingArguments`].

    The trainer groups examples by their longest source and keeps the columns of all sources; [`Seq2SeqTrainer`] reads
    source 0 only, and needs `remove_unused_columns=False` to keep the columns of the other sources. With
    [`Seq2SeqTrainingArguments`] all additional options are disabled. If no `data_collator` is given and
    `processing_class` is a processor of this package, the collator is [`DataCollatorForMultiSource`]. With
    `label_smoothing_factor` the trainer sets the collator's `model`.

    Args:
        *args: As [`Seq2SeqTrainer`].
        **kwargs: As [`Seq2SeqTrainer`].

    Raises:
        ValueError: If a dataset is given, but neither a `data_collator` nor a processor of this package as
            `processing_class`; if label smoothing is set both in the configuration and in the arguments; if
            `source_learning_rates` contains an unknown source, a source without trainable parameters of its own, or a
            rate below 0; if `max_tokens_per_batch` is given for a dataset without a length.
    """

    # Defaults of the options, which `Seq2SeqTrainingArguments` does not have.
    halve_after_epoch: int | None = None
    loss_per_sentence: bool = False
    max_tokens_per_batch: int | None = None
    source_learning_rates: Mapping[str, float] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = signature(Seq2SeqTrainer).bind(*args, **kwargs)
        processor = given.arguments.get("processing_class")
        if given.arguments.get("data_collator") is None:
            if hasattr(processor, "source_names"):
                given.arguments["data_collator"] = DataCollatorForMultiSource(processor)
            elif any(given.arguments.get(key) is not None for key in ("train_dataset", "eval_dataset")):
                raise ValueError(
                    "pass processing_class=processor, or data_collator=DataCollatorForMultiSource(processor); "
                    f"got processing_class of type {type(processor).__name__} and no data_collator."
                )
        super().__init__(*given.args, **given.kwargs)
        factor, own = self.args.label_smoothing_factor, self._config.label_smoothing
        if factor and own:
            raise ValueError(f"set label_smoothing={own} in the config or label_smoothing_factor={factor}, not both.")
        collator: Any = self.data_collator
        takes_labels = bool(factor or self.compute_loss_func)
        if takes_labels and isinstance(collator, DataCollatorForMultiSource) and collator.model is None:
            collator.model = self.model
        if isinstance(self.args, MultiSourceTrainingArguments):
            self._take_options(self.args)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the card of Transformers' trainer, extended by the model's sources and usage.

        An existing card in the folder is not changed, unless a trainer has written the card.

        Args:
            *args: As [`Trainer.create_model_card`].
            **kwargs: As [`Trainer.create_model_card`].
        """
        path = Path(str(self.args.output_dir)) / CARD
        written = path.exists() and "generated_from_trainer" in (ModelCard.load(path).data.tags or [])
        if not self.is_world_process_zero() or (path.exists() and not written):
            return
        super().create_model_card(*args, **kwargs)
        model: Any = self.accelerator.unwrap_model(self.model)
        if hasattr(model, "create_card"):
            describe_in_card(path, model, self.args.hub_model_id or "org/name")

    def _take_options(self, options: MultiSourceTrainingArguments) -> None:
        self.halve_after_epoch = options.halve_after_epoch
        self.loss_per_sentence = options.loss_per_sentence
        self.max_tokens_per_batch = options.max_tokens_per_batch
        if self.max_tokens_per_batch is not None and isinstance(self.train_dataset, IterableDataset):
            raise ValueError("max_tokens_per_batch needs a train_dataset with a length; got an IterableDataset.")
        rates: Any = options.source_learning_rates
        self.source_learning_rates = dict(rates or {})
        for name, rate in self.source_learning_rates.items():
            if name not in self._config.source_names:
                allowed = ", ".join(self._config.source_names)
                raise ValueError(f"source_learning_rates: unknown source {name!r}; the sources are {allowed}.")
            if rate < 0:
                raise ValueError(f"source_learning_rates[{name!r}] must be 0 or more; got {rate}.")
            sharing = [other for other in self._config.source_names if self._config.encoder_owner(other).name == name]
            if len(sharing) > 1:
                raise ValueError(
                    f"source_learning_rates: {name!r} shares its encoder: the sources {', '.join(sharing)} have one; a "
                    "rate can be set only for an encoder of one source."
                )
            if not own_parameters(self.model, name):
                raise ValueError(f"source_learning_rates: source {name!r} has no trainable parameters of its own.")
        options.use_noam(self._config.d_model)
        if options.patience is not None:
            self.add_callback(PatienceCallback(options.patience))

    @property
    def _config(self) -> Any:
        model: Any = self.model
        return model.config

    def _set_signature_columns_if_needed(self) -> None:
        # Trainer keeps only the columns that `forward` names; the other sources are passed through **kwargs.
        super()._set_signature_columns_if_needed()
        columns: Any = self._signature_columns
        columns += [column for column in self._config.source_keywords if column not in columns]

    def create_optimizer(self, model: Any = None) -> Any:
        """Create the optimizer, with `source_learning_rates`; with FSDP2, shard the model first.

        Args:
            model: The model to train; None: the trainer's model.

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

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Create the learning rate schedule: that of `lr_scheduler_type`, or that of `halve_after_epoch`.

        Args:
            num_training_steps: Total number of updates.
            optimizer: The optimizer; None: the trainer's optimizer.

        Returns:
            The schedule.
        """
        last = self.halve_after_epoch
        if last is None or self.lr_scheduler is not None:
            return super().create_scheduler(num_training_steps, optimizer)
        epoch = num_training_steps / self.args.num_train_epochs  # updates per epoch
        steps: Any = self.optimizer if optimizer is None else optimizer
        self.lr_scheduler = LambdaLR(steps, lambda update: 0.5 ** max(0, int(update / epoch) + 1 - last))
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """Count the labels of an update over all processes, or with `loss_per_sentence` the sentences."""
        if self.loss_per_sentence:  # one label for each sentence
            batch_samples = [{"labels": torch.zeros(len(batch["labels"]), 1)} for batch in batch_samples]
        return super()._get_num_items_in_batch(batch_samples, device)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute loss and gradients of a batch; on a CPU with faster matrix products, if the attention is `eager`.

        Args:
            *args: As [`Trainer.training_step`].
            **kwargs: As [`Trainer.training_step`].

        Returns:
            The loss.
        """
        model: Any = self.model
        if self.args.device.type == "cpu":
            keep_freed_memory()
        pays = self.args.device.type == "cpu" and uses_plain_attention(model)
        with fast_products(self.args.device) if pays else nullcontext():
            return super().training_step(*args, **kwargs)

    def prediction_step(
        self,
        model: Any,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, Any, Any]:
        """Evaluate one batch; with `predict_with_generate` in the data type of the weights, and without all logits.

        In the mixed precision of training, each step of `generate` would cast all weights again, which takes about
        twice the time.

        Args:
            model: The model, which can be wrapped.
            inputs: A batch.
            prediction_loss_only: As [`Seq2SeqTrainer.prediction_step`].
            ignore_keys: As [`Seq2SeqTrainer.prediction_step`].
            **gen_kwargs: As [`Seq2SeqTrainer.prediction_step`].

        Returns:
            The loss, the generated tokens and the labels. The loss and the labels are None if the batch has no labels;
            tokens and labels are None if only the loss is requested.
        """
        args: Any = self.args
        if prediction_loss_only or not args.predict_with_generate:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys, **gen_kwargs)
        # `Seq2SeqTrainer` calls this model only for the loss; ZeRO-3 needs a call of the output layer.
        whole = self.label_smoother is not None or is_deepspeed_zero3_enabled()
        of_loss: Any = model if whole else partial(model, skip_logits=True)
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        with nullcontext() if sharded else own_forward(self.model):
            return super().prediction_step(of_loss, inputs, prediction_loss_only, ignore_keys, **gen_kwargs)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Compute the loss; the model returns no logits if they are not needed.

        Args:
            model: The model, which can be wrapped.
            inputs: A batch.
            return_outputs: Whether to also return the model's outputs.
            num_items_in_batch: Number of labels in all batches of an update.

        Returns:
            The loss, or the loss and the outputs.
        """
        stock = return_outputs or self.label_smoother is not None or self.compute_loss_func is not None
        # ZeRO-3 gathers the weight of the output layer only in a call of the layer, which `skip_logits` avoids.
        if not stock and not is_deepspeed_zero3_enabled():
            inputs = {**inputs, "skip_logits": True}
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        # Tied weights gathered from several processes are separate copies, which Trainer would all save.
        if state_dict is not None:
            tied = getattr(self.model, "all_tied_weights_keys", {})
            state_dict = {key: tensor for key, tensor in state_dict.items() if key not in tied}
        super()._save(output_dir, state_dict)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # Checkpoints contain tied weights once; Trainer would warn about missing copies.
        tied = getattr(self.model, "all_tied_weights_keys", {})
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)

    def get_train_dataloader(self) -> Any:
        """Create the data loader for training, with `max_tokens_per_batch` for batches limited by tokens.

        Returns:
            The data loader of this process.
        """
        dataset, limit = self.train_dataset, self.max_tokens_per_batch
        stock = dataset is None or limit is None
        loader: Any = super().get_train_dataloader() if stock else self._token_loader(dataset, limit)
        if self.args.train_sampling_strategy == "group_by_length":
            # With several processes, `set_epoch` would otherwise not reach the sampler of a resumed run.
            whole = getattr(loader.batch_sampler, "batch_sampler", loader.batch_sampler)
            loader.set_sampler(getattr(whole, "sampler", whole))
        return loader

    def _token_loader(self, dataset: Any, limit: Any) -> Any:
        keys, args = token_keys(dataset, self._config.source_names), self.args
        sampler = TokenBatchSampler(keys, limit, args.world_size, self._seed)
        workers = args.dataloader_num_workers
        return self.accelerator.prepare(
            DataLoader(
                dataset,
                batch_sampler=sampler,
                collate_fn=self._get_collator_with_removed_columns(self.data_collator, description="training"),
                num_workers=workers,
                pin_memory=args.dataloader_pin_memory,
                persistent_workers=args.dataloader_persistent_workers,
                prefetch_factor=args.dataloader_prefetch_factor,
                worker_init_fn=partial(seed_worker, num_workers=workers, rank=args.process_index),
            )
        )

    @property
    def _seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length" or dataset is None:
            return super()._get_train_sampler(train_dataset)
        lengths = length_keys(dataset, self._config.source_names)
        # Batches of one step should have similar lengths on all processes; otherwise all wait for the longest batch.
        return LengthBucketSampler(lengths, self.args.train_batch_size * self.args.world_size, self._seed)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        # Trainer's length grouping would also shuffle evaluation, but predictions must be in the order of the examples.
        if self.args.train_sampling_strategy != "group_by_length" or eval_dataset is None:
            return super()._get_eval_sampler(eval_dataset)
        return SequentialSampler(eval_dataset)
