"""A small training with Hugging Face's Trainer: dropout, accumulation, evaluations and saves of its own."""

from __future__ import annotations

import argparse
import time
from typing import Any

import tiny
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed

from nemo_resiliency_plugins.integrations.huggingface import ResiliencyCallback


class Items(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": torch.full((16,), float(index % 7)), "labels": torch.tensor(float(index))}


class Model(nn.Module):
    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.step_s = step_s
        self.net = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> Any:
        time.sleep(self.step_s if self.training else 0.0)
        return {"loss": (self.net(inputs).squeeze(1) - labels / 96).square().mean()}


class LoggingTrainer(Trainer):
    signal_at = -1

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        tiny.log_step(self.state.global_step)
        tiny.signal_once(self.signal_at, self.state.global_step)
        return super().training_step(*arguments, **named)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--save-strategy", default="steps")
    parser.add_argument("--signal-at", type=int, default=-1, help="a step in which the last rank is told to leave")
    options = parser.parse_args()
    arguments = TrainingArguments(
        output_dir=str(tiny.CHECKPOINTS),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        save_strategy=options.save_strategy,
        save_steps=4,
        save_total_limit=2,
        eval_strategy="steps",
        eval_steps=5,
        logging_steps=1000,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    set_seed(1)
    model = Model(options.step_s)
    callback = ResiliencyCallback()
    trainer = LoggingTrainer(model, arguments, train_dataset=Items(), eval_dataset=Items(), callbacks=[callback])
    trainer.signal_at = options.signal_at
    trainer.train()
    reason = callback.stop_reason
    tiny.say(f"stopped: {reason.value if reason else None}")
    if tiny.RANK == 0 and reason is not None and reason.value == "finished":
        (tiny.ROOT / "result.txt").write_text(tiny.digest(dict(model.state_dict())))


if __name__ == "__main__":
    main()
