"""The ranks' part in the tests of trainers: the examples, as they stand."""

import importlib
import logging
import sys
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch_shards as shards
import torch_training as training

from peelsum.torch import SwitchAllreduceState, TopK, hook

EXAMPLES = Path(__file__).parents[2] / "examples/trainers"


def environments(world, *more):
    """What torchrun sets, as far as the trainers read it, and `more` for each rank."""
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    ranks = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "TORCHELASTIC_RUN_ID": "none"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GROUP_WORLD_SIZE": "1"}
    return [ranks | address | place | (more[rank] if more else {}) for rank, place in enumerate(places)]


def trained(rank, example):
    """Parameters after an example's training, what it saved, and the last numbers of the trainer's log."""
    sys.path.insert(0, str(EXAMPLES))
    module = importlib.import_module(example)
    with _logged(example) as logged:
        outcome = module.train()
    outcome.state.close()
    task = importlib.import_module("task")
    assert outcome.state.stats().steps == task.STEPS
    return task.parameters(outcome.model).numpy(), outcome.state.stats().saving, {**outcome.shown, **logged}


@contextmanager
def _logged(example):
    """Yield the numbers that the example gives to a log that keeps none."""
    numbers = {}
    if example == "with_accelerate":
        with patch("accelerate.Accelerator.log", lambda _, values, step: numbers.update(values)):
            yield numbers
    elif example == "with_deepspeed":
        write = "deepspeed.monitor.monitor.MonitorMaster.write_events"
        with patch(write, lambda _, events: numbers.update((name, value) for name, value, _ in events)):
            yield numbers
    else:
        yield numbers


def by_zero(rank):
    """Parameters after DeepSpeed's ZeRO, and every second sum of the process group."""
    sys.path.insert(0, str(EXAMPLES))
    made = shards.recorded(2)
    trained = importlib.import_module("with_zero").train()
    parameters = importlib.import_module("task").parameters(trained.model).numpy()
    dist.destroy_process_group()
    return parameters, made


def left_out(rank):
    """What a state saved, and what it said, when it was given to Lightning's own DDPStrategy."""
    sys.path.insert(0, str(EXAMPLES))
    import lightning
    import with_lightning
    from lightning.pytorch.strategies import DDPStrategy

    state, said = SwitchAllreduceState(over="gloo"), BufferingHandler(1000)
    logging.getLogger("peelsum.torch").addHandler(said)
    strategy = DDPStrategy(ddp_comm_state=state, ddp_comm_hook=hook)
    options = {"enable_checkpointing": False, "logger": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(strategy=strategy, accelerator="cpu", devices=2, max_steps=2, **options)
    trainer.fit(with_lightning.Module(), with_lightning.texts())
    state.close()
    return state.stats().saving, [record.getMessage() for record in said.buffer]


def without_ddp(rank, steps):
    """Parameters after `steps` without DDP, by `average_gradients`, and the steps that the state counted."""
    torch.manual_seed(7)
    model, state = training.Text(), SwitchAllreduceState(over="gloo")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        training.step_loss(model, rank, step).backward()
        state.average_gradients(model.parameters())
        optimizer.step()
    return training.parameters(model), state.stats().steps


def _state(model):
    return SwitchAllreduceState(over="gloo", names=model.named_parameters(), compressor=TopK(0.01))


def resumed_by_accelerate(rank, folder):
    """Parameters after training, and after training from a checkpoint in its middle, and what that has."""
    sys.path.insert(0, str(EXAMPLES))
    import task
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    def train(resume):
        accelerator, model = Accelerator(cpu=True), task.Classifier()
        state = _state(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=task.RATE)
        model, optimizer, texts = accelerator.prepare(model, optimizer, DataLoader(task.Texts()))
        model.register_comm_hook(state, hook)
        accelerator.register_save_state_pre_hook(lambda models, weights, folder: state.save(folder))
        accelerator.register_load_state_pre_hook(lambda models, folder: state.load(folder))
        if resume:
            accelerator.load_state(folder)
        for step, batch in enumerate(texts):
            if resume and step < task.STEPS // 2:
                continue
            if step == task.STEPS // 2 and not resume:
                accelerator.save_state(folder)
                accelerator.wait_for_everyone()
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
        state.close()
        return task.parameters(model).numpy()

    return train(False), train(True), sorted(path.name for path in Path(folder).glob("*rank*"))


def resumed_by_transformers(rank, folder):
    """As `resumed_by_accelerate`, with what was logged once an epoch."""
    sys.path.insert(0, str(EXAMPLES))
    import task
    from transformers import Trainer, TrainingArguments

    from peelsum.torch.transformers import SwitchCallback

    def train(resume):
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=1,
            num_train_epochs=2,
            train_sampling_strategy="sequential",
            optim="sgd",
            learning_rate=task.RATE,
            lr_scheduler_type="constant",
            logging_strategy="epoch",
            save_steps=task.STEPS // 2,
            use_cpu=True,
            report_to=[],
        )
        trainer = Trainer(task.Classifier(), arguments, train_dataset=task.Texts())
        state = _state(trainer.model)
        trainer.add_callback(SwitchCallback(trainer, state))
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{task.STEPS // 2}" if resume else None)
        state.close()
        logged = [f"epoch {one['epoch']}" for one in trainer.state.log_history if "switch/mb" in one]
        return task.parameters(trainer.model).numpy(), logged

    (uninterrupted, logged), (resumed, _) = train(False), train(True)
    return uninterrupted, resumed, logged


def resumed_by_lightning(rank, folder):
    """As `resumed_by_accelerate`, with the names of all that is left after a checkpoint was removed."""
    sys.path.insert(0, str(EXAMPLES))
    import lightning
    import task
    import with_lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from peelsum.torch.lightning import SwitchStrategy

    def train(resume):
        module = with_lightning.Module()
        state = _state(module)
        keep = ModelCheckpoint(folder, "{epoch}", every_n_epochs=1, save_top_k=-1, save_last="link")
        trainer = lightning.Trainer(
            strategy=SwitchStrategy(state),
            accelerator="cpu",
            devices=2,
            use_distributed_sampler=False,
            max_epochs=2,
            callbacks=[] if resume else [keep],
            enable_checkpointing=not resume,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, with_lightning.texts(), ckpt_path=f"{folder}/epoch=0.ckpt" if resume else None)
        state.close()
        if resume:
            trainer.strategy.remove_checkpoint(f"{folder}/epoch=0.ckpt")
            trainer.strategy.barrier()
        return task.parameters(module).numpy()

    return train(False), train(True), sorted(path.name for path in Path(folder).iterdir())
