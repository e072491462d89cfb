"""dcem again, with the search compiled."""

import dcem
from contenders.ours import search
from judging import Layer, Torch, serve


def layers(problem: str) -> dict[str, Layer]:
    if problem == "projection":
        return {}
    compiled = dcem.capture(search(problem, dcem.backward.Unroll()))
    return {"DCEM, unrolled and compiled": Torch(compiled)}


if __name__ == "__main__":
    serve(layers, packages=("dcem",))
