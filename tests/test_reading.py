"""Texts and files beyond a limit are refused before they are parsed; others are parsed as ever."""

import os
import tomllib
from pathlib import Path

import pytest

from peelsum.reading import MOST_BYTES, MOST_PARTS, LimitError, parse_json, parse_toml, read_bytes, read_text

LONG = 20_000
KEYS = {
    "bare": "a." * LONG + "a = 1",
    "spaced": "a \t. " * LONG + "a = 1",
    "quoted": r'"\"".' * LONG + "a = 1",
    "literal": """'"'.""" * LONG + "a = 1",
    "mixed": """a."b".'c'.""" * LONG + "a = 1",
    "table": "[" + "a." * LONG + "a]",
    "inline table": "a = {" + "a." * LONG + "a = 1}",
    "behind a word": "word = 1\n" + "a." * LONG + "a = 1",
}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_many_parts_is_refused(key):
    with pytest.raises(LimitError, match=rf"^line \d: has a key of more than {MOST_PARTS} parts; remove it$"):
        parse_toml(KEYS[key])


def test_what_is_no_such_key_is_parsed():
    parts = ".".join(["a"] * (MOST_PARTS - 1))
    text = f'{parts} = [{"1.5, " * 99}]\nb = "{"10.0.0.1, " * 99}..."\n# {"." * 99}'
    assert parse_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize("text", ["a = " + "[" * LONG, "a = " + "{a = " * LONG])
def test_nested_toml_is_refused(text):
    with pytest.raises(LimitError, match="nested too deeply"):
        parse_toml(text)


def test_a_text_of_too_many_bytes_is_refused():
    assert parse_json(b"[1]", 3) == [1]
    with pytest.raises(LimitError, match="is longer than 3 bytes"):
        parse_json(b"[1] ", 3)
    with pytest.raises(LimitError, match="is longer than 3 characters"):
        parse_toml("#234", 3)


def test_a_file_of_too_many_bytes_is_not_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert read_text(path, 4) == "1234"
    with pytest.raises(OSError, match="has more than 3 bytes"):
        read_bytes(path, 3)
    os.truncate(path, MOST_BYTES + 1)
    with pytest.raises(OSError, match="has more than 1,048,576 bytes"):
        read_bytes(path)


def test_a_pipe_with_a_name_or_a_device_is_not_read(named_pipe, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(named_pipe)
    for path in (named_pipe, link, Path("/dev/zero"), Path("/dev/full")):
        with pytest.raises(OSError, match="is not a regular file") as caught:
            read_bytes(path)
        assert caught.value.filename == str(path)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    assert read_bytes(Path("/dev/null")) == b""


def test_a_shell_s_pipe_is_read():
    reader, writer = os.pipe()
    os.write(writer, b"a = 1")
    os.close(writer)
    assert read_text(Path(f"/dev/fd/{reader}")) == "a = 1"
    os.close(reader)


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    path = tmp_path / "file"
    path.write_text("a = 1\n", encoding="utf-8-sig")
    assert parse_toml(read_text(path)) == {"a": 1}
