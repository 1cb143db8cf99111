"""A tensor and its network, as options of `peelsum plan`. Slow imports happen in the functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from peelsum.options import CommandSettings, Option, OptionError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from peelsum.allreduce import NetworkModel
    from peelsum.allreduce.indexes import UnionCounts

Support = Literal["uniform", "rows", "columns"]


@dataclass(frozen=True)
class Point(CommandSettings):
    """A tensor, and the links over which it is summed."""

    elements: Annotated[int, Option("Elements of the tensor.", 1, 2**39)]
    density: Annotated[float, Option("Share of elements that are non-zero on some worker.", 0, 1)]
    gbps: Annotated[
        float, Option("Rate of every link in Gbit/s of words, without packet headers.", 1e-6, 1e6)
    ]
    rtt: Annotated[
        float, Option("Seconds from a worker to the server and back: four links' delays.", 0, 3600)
    ]
    workers: Annotated[int, Option("Number of workers, 1 to 1024.", 1, 1024)] = 4
    support: Annotated[
        Support, Option("Where non-zeros are: anywhere, in rows of 64, or in half of 256 columns.")
    ] = "uniform"
    ratio: Annotated[
        float | None,
        Option("Share of elements that a worker sends by a sparse method; by default --density.", 0, 1),
    ] = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.support == "columns" and self.density > 0.5:
            raise OptionError(f"--density: {self.density:g} is out of range; use 0 to 0.5")

    @property
    def network(self) -> NetworkModel:
        """The network model of these links."""
        from peelsum.allreduce import NetworkModel

        return NetworkModel(self.gbps, self.rtt)

    @property
    def expected_statistics(self) -> UnionCounts:
        """The statistics of the tensor that a history of such steps has."""
        from peelsum.bench.codec.timing import expected_statistics

        return expected_statistics(self.support, self.elements, self.density)

    def tensors(self, step: int) -> list[NDArray[np.float32]]:
        """Return every worker's random float32[elements] for a step."""
        import numpy as np

        from peelsum.bench.allreduce import shared_tensor
        from peelsum.bench.codec.timing import positions

        rng = np.random.default_rng([self.seed, step, self.elements])
        union = positions(self.support, self.elements, self.density, rng)
        return [
            shared_tensor(union, self.elements, worker, self.workers, self.seed + step)
            for worker in range(self.workers)
        ]
