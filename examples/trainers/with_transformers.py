"""The Trainer of Hugging Face: a callback that registers the hook and logs what it saves."""

import tempfile

from task import OVER, RATE, Classifier, Texts, Trained, run
from transformers import Trainer, TrainingArguments

from peelsum.torch import SwitchAllreduceState
from peelsum.torch.transformers import SwitchCallback


def train() -> Trained:
    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(),
        per_device_train_batch_size=1,
        num_train_epochs=1,
        train_sampling_strategy="sequential",
        optim="sgd",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        logging_steps=5,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
    )
    trainer = Trainer(Classifier(), arguments, train_dataset=Texts())
    state = SwitchAllreduceState(over=OVER)
    trainer.add_callback(SwitchCallback(trainer, state))
    trainer.train()
    return Trained(trainer.model, state, trainer.state.log_history[-2])


if __name__ == "__main__":
    run(train)
