"""A small training with Lightning: random batches in random order, dropout, accumulation, an evaluation each epoch."""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import lightning.pytorch as pl
import tiny
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from nemo_resiliency_plugins.integrations.lightning import ResiliencyCallback


class Items(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((16,), float(index % 7)) + random.random()


class Model(pl.LightningModule):
    def __init__(self, step_s: float, signal_at: int) -> None:
        super().__init__()
        self.step_s, self.signal_at = step_s, signal_at
        self.net = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        tiny.log_step(self.global_step)
        tiny.signal_once(self.signal_at, self.global_step)
        time.sleep(self.step_s)
        return self.net(batch).square().mean()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.net(batch + torch.randn_like(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)]

    def train_dataloader(self) -> Any:
        return DataLoader(Items(), batch_size=4, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(Items(), batch_size=16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--signal-at", type=int, default=-1, help="a step in which the last rank is told to leave")
    options = parser.parse_args()
    pl.seed_everything(1 + tiny.RANK, verbose=False)
    callback = ResiliencyCallback(tiny.CHECKPOINTS, every=4)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=tiny.WORLD_SIZE,
        strategy="ddp" if tiny.WORLD_SIZE > 1 else "auto",
        max_epochs=options.epochs,
        accumulate_grad_batches=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    torch.manual_seed(1)
    model = Model(options.step_s, options.signal_at)
    torch.manual_seed(1 + tiny.RANK)
    trainer.fit(model)
    reason = callback.stop_reason
    tiny.say(f"stopped: {reason.value if reason else None}")
    if tiny.RANK == 0 and reason is not None and reason.value == "finished":
        (tiny.ROOT / "result.txt").write_text(tiny.digest(dict(model.state_dict())))


if __name__ == "__main__":
    main()
