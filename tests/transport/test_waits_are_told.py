"""A process that waits for the first answer of a switch or a controller logs it after two seconds, once."""

import logging
import socket
import threading
from unittest.mock import Mock

import pytest
from patience import PATIENCE_S

from peelsum.transport import lease, link
from peelsum.transport.errors import SwitchUnreachableError
from peelsum.transport.lease import Lease
from peelsum.transport.link import PortLink


def test_a_switch_that_does_not_answer_is_talked_of_once(monkeypatch, caplog):
    monkeypatch.setattr(link, "_TELL_AFTER", 0.1)
    with socket.socket(type=socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        host, port = silent.getsockname()
        with caplog.at_level(logging.WARNING, "peelsum"), pytest.raises(SwitchUnreachableError):
            PortLink((host, port), 64, hello_s=1.0)
    assert caplog.messages == [f"switch address {host}:{port}: no answer yet; waiting up to 1 s"]


def controller(answers: threading.Event):
    """Answer one request, once told to."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        connection, _ = listening.accept()
        with listening, connection:
            answers.wait(PATIENCE_S)
            connection.sendall(b"{}\n")
            connection.recv(4096)
            connection.recv(4096)

    threading.Thread(target=serve, daemon=True).start()
    return listening.getsockname()


def test_a_controller_that_takes_its_time_is_talked_of(monkeypatch):
    monkeypatch.setattr(lease, "_TELL_AFTER_S", 0.01)
    answers = threading.Event()
    log = Mock(warning=Mock(side_effect=lambda *_: answers.set()))
    monkeypatch.setattr(lease, "_log", log)
    host, port = controller(answers)
    Lease((host, port), 60.0).close()
    log.warning.assert_called_once_with(
        "controller %s:%d: admits the job; waiting up to %g s", host, port, 60.0
    )


def test_a_controller_that_answers_at_once_is_not(monkeypatch):
    answers, timer = threading.Event(), Mock()
    answers.set()
    monkeypatch.setattr(lease.threading, "Timer", lambda *_: timer)
    held = Lease(controller(answers), 90.0)
    assert held._link.gettimeout() == 90.0  # not the limit of the connection
    held.close()
    timer.cancel.assert_called_once_with()
