"""A tensor and its network, as options of `peelsum plan`; imports nothing that takes long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from peelsum.options import Option, OptionError, Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from peelsum.allreduce import NetworkModel
    from peelsum.allreduce.costs import Seen

Support = Literal["uniform", "rows", "columns"]


@dataclass(frozen=True)
class Point(Settings):
    """A tensor, and the links over which it is summed."""

    elements: Annotated[int, Option("Elements of the tensor.", 1, 2**39)]
    density: Annotated[float, Option("Share of elements that are non-zero on some worker.", 0, 1)]
    gbps: Annotated[float, Option("Rate at which a worker sends words, in Gbit/s.", 1e-6, 1e6)]
    """The rate of every link."""
    rtt: Annotated[float, Option("Seconds that the shortest exchange takes.", 0, 3600)]
    """From a worker to the server and back: four times a link's delay."""
    workers: Annotated[int, Option("Workers that sum; they share the bits of an int32.", 1, 1024)] = 4
    support: Annotated[Support, Option("Non-zeros anywhere, in rows of 64, or in half of 256 columns.")] = (
        "uniform"
    )
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
        """The network model that an allreduce is given."""
        from peelsum.allreduce import NetworkModel

        return NetworkModel(self.gbps, self.rtt)

    @property
    def seen(self) -> Seen:
        """What workers expect of the next step's tensor."""
        from peelsum.bench.codec import seen

        return seen(self.support, self.elements, self.density)

    def tensors(self, step: int) -> list[NDArray[np.float32]]:
        """Return every worker's float32[elements] of a step."""
        import numpy as np

        from peelsum.bench.allreduce import shared_tensor
        from peelsum.bench.codec.supports import positions

        rng = np.random.default_rng([self.seed, step, self.elements])
        union = positions(self.support, self.elements, self.density, rng)
        return [
            shared_tensor(union, self.elements, worker, self.workers, self.seed + step)
            for worker in range(self.workers)
        ]
