"""Users' own data: MovieLens, texts, CIFAR-10, image folders, SQuAD; and the errors for unusable data."""

import json
from itertools import islice

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from peelsum.training import MODELS, TrainingDataError, make_task  # noqa: E402
from peelsum.training.bert import squad  # noqa: E402
from peelsum.training.ncf import movielens, power_law  # noqa: E402
from peelsum.training.text import Text, words_in  # noqa: E402
from peelsum.training.vgg19 import images_in  # noqa: E402


def test_movielens_ratings_are_numbered_from_zero(tmp_path):
    (tmp_path / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n7,100,4.0,1\n9,5,3.5,2\n7,5,1.0,3\n"
    )
    for path in (tmp_path, tmp_path / "ratings.csv"):
        ratings = movielens(path)
        assert (ratings.users, ratings.items) == (2, 2)
        assert list(zip(ratings.user, ratings.item, strict=True)) == [(0, 1), (1, 0), (0, 0)]


def test_a_power_law_has_few_items_that_many_like():
    ratings = power_law(6040, 3706)
    counts = np.sort(np.bincount(ratings.item, minlength=ratings.items))[::-1]
    assert counts[:37].sum() > 10 * counts[-37:].sum()  # 37 items are one percent
    assert ratings.user.max() < ratings.users
    assert ratings.item.max() < ratings.items


def test_a_text_is_cut_at_spaces_and_lines(tmp_path):
    (tmp_path / "wiki.train.tokens").write_text(" = A = \n\n the <unk> the \n")
    words = words_in(tmp_path)
    assert words == ["=", "A", "=", "<eos>", "<eos>", "the", "<unk>", "the", "<eos>"]
    text = Text.of(words, 4)
    assert text.words == ("<unk>", "<eos>", "=", "the")
    assert text.ids.tolist() == [2, 0, 2, 1, 1, 3, 0, 3, 1]


def test_workers_read_parts_of_a_text_that_do_not_overlap(tmp_path):
    file = tmp_path / "text"
    file.write_text(" ".join(f"w{i}" for i in range(2000)))
    task = make_task("lstm", path=file)
    seen = [
        {int(word) for words, *_ in islice(task.batches(rank, 2, 0), 5) for word in words.flatten()}
        for rank in range(2)
    ]
    assert all(len(words) > 500 for words in seen)
    assert not seen[0] & seen[1]


def test_what_follows_is_the_next_word(tmp_path):
    file = tmp_path / "text"
    file.write_text(" ".join(f"w{i % 97}" for i in range(2000)))
    words, following, _ = next(make_task("lstm", path=file).batches(0, 1, 0))
    assert torch.equal(words[:, 1:], following[:, :-1])


def test_cifar_records(tmp_path):
    records = np.zeros((3, 3073), np.uint8)
    records[:, 0] = (9, 0, 4)
    records[0, 1] = 255  # red, upper left
    records.tofile(tmp_path / "data_batch_1.bin")
    images = images_in(tmp_path, 32)
    assert images.labels.tolist() == [9, 0, 4]
    pixels = images.at(np.array([0]))
    assert pixels.shape == (1, 3, 32, 32)
    assert pixels[0, 0, 0, 0] == 1
    assert np.count_nonzero(pixels == -1) == pixels.size - 1


def test_a_folder_for_each_class(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for label, colour in enumerate([(255, 0, 0), (0, 0, 255)]):
        folder = tmp_path / f"class{label}"
        folder.mkdir()
        image.new("RGB", (50, 40), colour).save(folder / "one.png")
    images = images_in(tmp_path, 32)
    assert images.labels.tolist() == [0, 1]
    pixels = images.at(np.array([1, 0]))
    assert pixels.shape == (2, 3, 32, 32)
    assert pixels[:, :, 0, 0].tolist() == [[-1, -1, 1], [1, -1, -1]]
    loss = make_task("vgg19", path=tmp_path).model(torch.from_numpy(pixels), torch.tensor([1, 0]))
    assert loss.item() > 0


def _squad(context, text, start):
    asked = {"question": "Who was it?", "answers": [{"text": text, "answer_start": start}]}
    unanswerable = {"question": "Why?", "answers": []}
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": [asked, unanswerable]}]}]})


def test_squad_answers_are_places_of_words(tmp_path):
    context = "In 1858, the Virgin Mary appeared."
    (tmp_path / "train-v1.1.json").write_text(_squad(context, "Virgin Mary", context.index("Virgin")))
    (question,) = squad(tmp_path)
    assert question.question == ("who", "was", "it", "?")
    first, last = question.answer
    assert question.passage[first : last + 1] == ("virgin", "mary")
    words, segments, padding, answers = next(make_task("bert", path=tmp_path).batches(0, 1, 0))
    first, last = answers[0].tolist()
    assert last == first + 1
    assert segments[0, first] == 1
    assert not padding[0, : last + 1].any()
    assert padding[0, -1]
    assert words.shape == segments.shape == padding.shape


@pytest.mark.parametrize("name", MODELS)
def test_a_path_that_has_no_data_is_refused_with_what_to_pass(name, tmp_path):
    for path, error in ((tmp_path / "nothing", "nothing: does not exist; pass"), (tmp_path, "pass")):
        with pytest.raises(TrainingDataError, match=error):
            make_task(name, path=path)


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("ncf", "ratings.csv", b"userId,movieId\nx,y\n"),
        ("lstm", "train.txt", b"\xff\xfe\xff"),
        ("vgg19", "data_batch_1.bin", b"\0" * 100),
        ("bert", "train-v1.1.json", b'{"data": 3}'),
        ("bert", "train-v1.1.json", b'{"data": []}'),
    ],
)
def test_data_of_another_form_is_refused(name, file, content, tmp_path):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(TrainingDataError, match=file if content != b'{"data": []}' else "no question"):
        make_task(name, path=tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("lstm", "a few words", "text: 4 words are too few for 4 workers; pass 672 or more"),
        ("ncf", "userId,movieId\n7,5\n", "ratings: 1 are too few for 4 workers; pass 4 or more"),
    ],
)
def test_data_that_are_too_few_for_the_workers_are_refused(name, content, said, tmp_path):
    file = tmp_path / "data"
    file.write_text(content)
    with pytest.raises(TrainingDataError, match=said):
        next(make_task(name, path=file).batches(0, 4, 0))
