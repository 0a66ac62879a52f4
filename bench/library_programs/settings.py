"""Checked types, settings and output."""

from bench.library_programs import program, tensor


@program("jaxtyping", "beartype")
def jaxtyping_checked():
    from beartype import beartype
    from jaxtyping import Float, jaxtyped
    from torch import Tensor

    @jaxtyped(typechecker=beartype)
    def product(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
        return a @ b + 1

    def f(a, b):
        return product(a, b).relu()

    return f, lambda n: (tensor(n, 3), tensor(3 if n < 17 else 4, n))  # the last call is refused


@program("beartype")
def beartype_checked():
    from beartype import beartype
    from torch import Tensor

    @beartype
    def scaled(x: Tensor, k: int) -> Tensor:
        return x.sin() * k + 1

    return scaled, lambda n: (tensor(n), n if n < 17 else str(n))


@program("typeguard")
def typeguard_checked():
    from torch import Tensor
    from typeguard import typechecked

    @typechecked
    def scaled(x: Tensor, k: int) -> Tensor:
        return x.sin() * k + 1

    def f(x, k):
        return scaled(x, k) + 1

    return f, lambda n: (tensor(n), n if n < 17 else str(n))


@program("omegaconf")
def omegaconf_settings():
    from omegaconf import OmegaConf

    settings = OmegaConf.create({"scale": 2.0, "layers": [{"bias": 1.0}, {"bias": 2.0}]})

    def f(x):
        for layer in settings.layers:
            x = (x * settings.scale + layer.bias).tanh()
        return x

    return f, lambda n: (tensor(n),)


@program("hydra")
def hydra_instantiate():
    from hydra.utils import instantiate

    def f(x):
        layer = instantiate({"_target_": "torch.nn.LayerNorm", "normalized_shape": x.shape[-1]})
        return layer(x)

    return f, lambda n: (tensor(3, n),)


@program("pydantic")
def pydantic_settings():
    import pydantic

    class Settings(pydantic.BaseModel):
        scale: float = 2.0
        steps: int

    def f(x, n):
        settings = Settings(steps=n)
        return (x * settings.scale).sin() + settings.steps

    return f, lambda n: (tensor(n), n if n < 17 else "many")


@program("attr")
def attrs_state():
    import attrs
    import torch

    @attrs.define
    class State:
        x: torch.Tensor
        steps: int = 0

        def next(self):
            return attrs.evolve(self, x=self.x.sin() + 1, steps=self.steps + 1)

    def f(x):
        state = State(x).next().next()
        return state.x, state.steps

    return f, lambda n: (tensor(n),)


@program("rich")
def rich_output():
    import io

    from rich.console import Console
    from rich.table import Table

    def f(x):
        console = Console(file=io.StringIO(), width=60)
        table = Table("a", "b")
        table.add_row("sum", f"{x.sum().item():.3f}")
        console.print(table)
        return console.file.getvalue(), x * 2

    return f, lambda n: (tensor(n),)


@program("tqdm")
def tqdm_loop():
    import io

    import tqdm

    def f(x):
        for _ in tqdm.tqdm(range(5), file=io.StringIO()):
            x = (x * 1.1).sin()
        return x

    return f, lambda n: (tensor(n),)
