"""What each of two processes trains on, in a whole run and in one that is resumed within its second epoch.

accelerate launch --config_file training/accelerate/ddp.yaml tests/support/batches_of_two.py FOLDER SETTINGS

SETTINGS are those of the trainer, as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from trainers import made_up_examples, trainer_of


def main(folder: Path, settings: dict[str, Any]) -> None:
    settings |= {"num_train_epochs": 3, "logging_strategy": "no"}
    whole = trainer_of(folder, made_up_examples(26), **settings)
    whole.train()
    half = whole.state.global_step // 2
    first = trainer_of(folder, made_up_examples(26), save_steps=half, **{**settings, "save_strategy": "steps"})
    first.train()
    resumed = trainer_of(folder, made_up_examples(26), **settings)
    resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{half}"))
    seen: list[Any] = [trainer.data_collator for trainer in (whole, resumed)]
    found = {"batches": seen[0].batches, "resumed": seen[1].batches}
    (folder / f"process_{whole.args.process_index}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
