"""The four models have the published parameter counts, falling losses, and gradients as sparse as claimed."""

import math
from itertools import islice

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.accuracy.subjects import SmallConvNet, SmallTransformer, gratings  # noqa: E402
from peelsum.training import MODELS, make_task  # noqa: E402
from peelsum.training.bert import FULL as BERT_BASE  # noqa: E402
from peelsum.training.bert import Bert  # noqa: E402
from peelsum.training.lstm import FULL as LARGE_LSTM  # noqa: E402
from peelsum.training.lstm import SMALL as SMALL_LSTM  # noqa: E402
from peelsum.training.lstm import LanguageModel, draw  # noqa: E402
from peelsum.training.ncf import FULL as MLPERF_NCF  # noqa: E402
from peelsum.training.ncf import NeuMF  # noqa: E402
from peelsum.training.recording import record  # noqa: E402
from peelsum.training.vgg19 import FULL as VGG19  # noqa: E402
from peelsum.training.vgg19 import Vgg19  # noqa: E402

nn = torch.nn


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        # MLPerf's NCF on ml-20m: 138,493 users and 26,744 items.
        (lambda: NeuMF(MLPERF_NCF.users, MLPERF_NCF.items, MLPERF_NCF), 31_832_577),
        # Zaremba et al.: two layers of 1500, Penn Treebank's 10,000 words; torch has two biases per gate.
        (
            lambda: LanguageModel(10_000, LARGE_LSTM),
            2 * 10_000 * 1500 + 10_000 + 2 * 4 * (2 * 1500**2 + 2 * 1500),
        ),
        # torchvision's vgg19 with 1000 classes.
        (lambda: Vgg19(1000, VGG19), 143_667_240),
        # BertForQuestionAnswering of bert-base-uncased, which has no pooler.
        (lambda: Bert(BERT_BASE), 108_893_186),
    ],
    ids=MODELS,
)
def test_the_full_size_is_the_published_one(make, parameters):
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in make().parameters()) == parameters


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "ncf" else pytest.mark.slow) for name in MODELS]
)
def test_training_gets_somewhere(name):
    task = make_task(name)
    optimizer = task.optimizer(task.model.parameters())
    batch = next(task.batches(0, 1, 0))
    losses = []
    for _ in range(12):  # overfit one batch
        optimizer.zero_grad()
        loss = task.model(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert min(losses[-3:]) < losses[0]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "bert" else []) for name in MODELS]
)
def test_a_task_is_the_same_for_the_same_seed(name):
    task, same, different = make_task(name), make_task(name), make_task(name, seed=1)
    assert all(map(torch.equal, task.model.parameters(), same.model.parameters()))
    assert not all(map(torch.equal, task.model.parameters(), different.model.parameters()))
    for ours, theirs in zip(islice(task.batches(1, 2, 0), 2), islice(same.batches(1, 2, 0), 2), strict=True):
        assert all(map(torch.equal, ours, theirs))
    assert not all(map(torch.equal, next(task.batches(0, 2, 0)), next(task.batches(1, 2, 0))))


def test_word_tables_have_a_gradient_for_the_words_of_the_batch_alone():
    (trace,) = record(make_task("lstm"), 1, 1, on_step=lambda step: None)
    rows = dict(zip(trace.names, trace.count[0] / trace.elements, strict=True))
    words = SMALL_LSTM.batch * SMALL_LSTM.length
    assert 0 < rows["embedding.weight"] <= words / SMALL_LSTM.vocabulary
    assert 0 < rows["softmax.weight"] <= (words + SMALL_LSTM.samples) / SMALL_LSTM.vocabulary
    assert rows["lstm.weight_hh_l0"] == 1


def test_the_small_models_are_as_small_as_documented_and_do_not_look_ahead():
    assert sum(parameter.numel() for parameter in SmallConvNet(10).parameters()) == 38_282
    model = SmallTransformer(50, 16, 2, 8)
    words, following = torch.arange(8)[None], torch.arange(8, 16)[None]
    changed = words.clone()
    changed[0, 7] = 40
    hidden = []
    model.encoder.register_forward_hook(lambda *called: hidden.append(called[2]))
    assert model(words, following) != model(changed, following)
    assert torch.equal(hidden[0][:, :7], hidden[1][:, :7])
    assert not torch.equal(hidden[0][:, 7], hidden[1][:, 7])


def test_gratings_are_the_same_for_the_same_seed_and_of_ten_classes():
    images, others = gratings(200), gratings(200, seed=1)
    assert images.at(np.arange(5)).shape == (5, 3, 32, 32)
    assert np.array_equal(images.at(np.arange(200)), gratings(200).at(np.arange(200)))
    assert not np.array_equal(images.labels, others.labels)
    assert set(images.labels.tolist()) == set(range(10))


def test_the_sampled_softmax_is_right_on_average():
    torch.manual_seed(0)
    model = LanguageModel(50, SMALL_LSTM)
    nn.init.normal_(model.softmax.weight)
    words, following = torch.randint(0, 50, (4, 10)), torch.randint(0, 50, (4, 10))
    whole = model(words, following, torch.empty(0, dtype=torch.int64))
    rng = np.random.default_rng(1)
    many = torch.cat([draw(rng, 50, 49) for _ in range(1000)])
    sampled = model(words, following, many)
    assert sampled.item() == pytest.approx(whole.item(), rel=0.03)
    assert draw(rng, 50, 50).numel() == 0
