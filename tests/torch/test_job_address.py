"""The error for a controller's address in another form suggests //HOST:PORT."""

import pytest

from peelsum.torch.errors import HookConfigError
from peelsum.torch.switch_seat import connect_rank


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("127.0.0.1:9560", "//127.0.0.1:9560"),
        ("http://127.0.0.1:9560", "//127.0.0.1:9560"),
        ("http://127.0.0.1:9560/", "//127.0.0.1:9560"),
        ("tcp:127.0.0.1:9560", "//127.0.0.1:9560"),
        ("tcp://h:1/x", "//h:1"),
        ("[::1]:9560", "//[::1]:9560"),
        ("tcp://[fe80::1]:9560/job", "//[fe80::1]:9560"),
    ],
)
def test_an_address_in_another_form_is_told_the_right_one(given, right, monkeypatch):
    monkeypatch.delenv("PEELSUM_SEAT", raising=False)
    monkeypatch.setenv("PEELSUM_JOB", given)
    with pytest.raises(HookConfigError) as caught:
        connect_rank("", 0, None, None, 1.0)
    assert str(caught.value) == (
        f"over: {given}: No such file or directory; for a controller there, give {right}"
    )


def test_a_file_that_is_not_there_is_not_taken_for_an_address():
    with pytest.raises(HookConfigError, match=r"over: job:json: No such file .*; give the job's file$"):
        connect_rank("job:json", 0, None, None, 1.0)
