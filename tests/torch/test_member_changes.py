"""Results that another rank sends, and a lease that two threads use."""

import socket
import threading

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from peelsum.torch.sparse_sums import SparseTensor
from peelsum.transport.lease import Lease


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_sparse_result_without_rows_replaces_another(dtype):
    empty = torch.sparse_coo_tensor(torch.zeros((1, 0), dtype=torch.int64), torch.zeros((0, 4)), (10, 4))
    other = torch.sparse_coo_tensor(torch.tensor([[3]]), torch.ones((1, 4)), (10, 4)).to(dtype)
    rest = SparseTensor(other).replace_content(
        np.concatenate([SparseTensor(empty.to(dtype)).content(), np.array([7], np.uint32)])
    )
    assert other.coalesce()._nnz() == 0
    assert rest.tolist() == [7]


def test_a_step_begins_while_a_sum_checks_the_lease():
    """The thread of the sums polls the connection as the training thread does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = threading.Thread(target=lambda: links.append(listening.accept()[0]))
        links: list[socket.socket] = []
        answering.start()
        lease: list[Lease] = []
        asking = threading.Thread(target=lambda: lease.append(Lease(listening.getsockname(), 30.0)))
        asking.start()
        answering.join()
        links[0].sendall(b'{"ok": 1}\n')
        asking.join()
        links[0].sendall(b'{"entering": [3], "change": 1}\n')
        beginning = threading.Thread(target=lambda: lease[0].begin_step(1, 1.0))
        beginning.daemon = True
        beginning.start()
        errors = []
        while beginning.is_alive():
            try:
                lease[0].check("job 1")
            except RuntimeError as error:
                errors.append(str(error))
                break
        assert not errors
        lease[0].close()
        links[0].close()
