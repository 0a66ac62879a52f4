"""Schemas, linear operators, derivatives of NumPy code, transport, nested data, wavelets, quadrature, molecules, minimisation."""

from bench.library_programs import array, program, tensor


@program("jsonschema")
def jsonschema_checks():
    from jsonschema import Draft202012Validator, ValidationError, validate

    schema = {
        "type": "object",
        "properties": {"price": {"type": "number", "minimum": 0}, "name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["price", "name"],
    }
    checks = Draft202012Validator(schema)

    def f(x, price):
        validate(instance={"name": "Eggs", "price": price}, schema=schema)
        wrong = [e.message for e in checks.iter_errors({"price": -price, "tags": ["a", 1]})]
        try:
            validate(instance={"name": "Eggs", "price": "Invalid"}, schema=schema)
        except ValidationError as e:
            return x * price, sorted(wrong), e.message

    return f, lambda n: (tensor(n, 3), 34.99)


@program("xitorch")
def xitorch_root():
    import torch
    import xitorch
    from xitorch.linalg import solve
    from xitorch.optimize import rootfinder

    def equation(y, a):
        return torch.tanh(a @ y + 0.1) + y / 2.0

    def f(a, y, b):
        a = a.clone().requires_grad_()
        root = rootfinder(equation, y, params=(a,))
        (g,) = torch.autograd.grad(root.sum(), a)
        lhs = xitorch.LinearOperator.m(a.detach() @ a.detach().mT + torch.eye(len(a), dtype=a.dtype))
        return root.detach(), g, solve(lhs, b)

    return f, lambda n: (0.1 * tensor(n, n).double(), tensor(n, 1, seed=1).double(), tensor(n, 2, seed=2).double())


@program("funcy")
def funcy_pipelines():
    import funcy

    def f(x, n):
        squares = funcy.walk_values(lambda v: v * v, {i: i for i in range(n)})
        even, odd = funcy.lsplit(lambda i: i % 2, range(n))
        pieces = funcy.lchunks(3, funcy.lremove(lambda i: i % 5 == 0, range(n)))
        scaled = funcy.rcompose(lambda t: t * 2, funcy.partial(lambda s, t: t + s, sum(squares.values())))
        return scaled(x), even, odd, pieces, funcy.merge({"a": 1}, {"b": 2}), funcy.group_by(lambda i: i % 3, range(n))

    return f, lambda n: (tensor(n, 2), n)


@program("autograd")
def autograd_of_numpy():
    import autograd.numpy as anp
    from autograd import grad

    def tanh(x):
        return (1.0 - anp.exp(-2 * x)) / (1.0 + anp.exp(-2 * x))

    def loss(w, x, y):
        return anp.sum((tanh(anp.dot(x, w)) - y) ** 2)

    def f(w, x, y):
        for _ in range(3):
            w = w - 0.01 * grad(loss)(w, x, y)
        return w, grad(grad(tanh))(1.0)

    return f, lambda n: (array(3), array(n, 3, seed=1), array(n, seed=2))


@program("geomloss")
def geomloss_sinkhorn():
    import torch
    from geomloss import SamplesLoss

    loss = SamplesLoss(loss="sinkhorn", p=2, blur=0.05, backend="tensorized")

    def f(x, y):
        x = x.clone().requires_grad_()
        value = loss(x, y)
        (g,) = torch.autograd.grad(value, [x])
        return value.detach(), g

    return f, lambda n: (tensor(n, 3), tensor(n + 2, 3, seed=1))


@program("glom")
def glom_of_nested():
    from glom import Coalesce, T, glom

    def f(x, data):
        spec = {"moons": ("system.planets", [("moons", len)]), "names": ("system.planets", ["name"]), "mass": Coalesce("system.mass", default=2.0)}
        found = glom(data, spec)
        return x * found["mass"] + sum(found["moons"]), found["names"], glom(data, T["system"]["planets"][-1]["name"])

    return f, lambda n: (tensor(n, 2), {"system": {"planets": [{"name": "earth", "moons": [1]}, {"name": "mars", "moons": [1] * (n % 4)}]}})


@program("tree")
def tree_of_parameters():
    import tree

    def f(structure):
        doubled = tree.map_structure(lambda t: t * 2, structure)
        paths = ["/".join(map(str, path)) for path, _ in tree.flatten_with_path(doubled)]
        return doubled, paths, tree.unflatten_as(structure, [t + 1 for t in tree.flatten(structure)])

    return f, lambda n: ({"w": [tensor(n, 2), tensor(2)], "b": (tensor(n),)},)


@program("ptwt", "pywt")
def ptwt_wavelets():
    import ptwt

    def f(x):
        coefficients = ptwt.wavedec(x, "db2", mode="zero", level=2)
        return coefficients, ptwt.waverec(coefficients, "db2")

    return f, lambda n: (tensor(2, 8 * n),)


@program("torchquad")
def torchquad_integrals():
    import torch
    from torchquad import Simpson, Trapezoid

    def f(scale):
        def function(x):
            return torch.sin(scale * x[:, 0]) + torch.exp(x[:, 1])

        domain = [[0.0, 1.0], [-1.0, 1.0]]
        return Simpson().integrate(function, dim=2, N=441, integration_domain=domain), Trapezoid().integrate(function, dim=2, N=441, integration_domain=domain)

    return f, lambda n: (torch.tensor(n / 8),)


@program("egnn_pytorch")
def egnn_layers():
    import torch
    from egnn_pytorch import EGNN

    torch.manual_seed(0)
    first, second = EGNN(dim=16), EGNN(dim=16)

    def f(features, places):
        features, places = first(features, places)
        return second(features, places)

    return f, lambda n: (tensor(1, n, 16), tensor(1, n, 3, seed=1))


@program("nystrom_attention")
def nystrom_attends():
    import torch
    from nystrom_attention import NystromAttention

    torch.manual_seed(0)
    attention = NystromAttention(dim=16, dim_head=8, heads=2, num_landmarks=4, pinv_iterations=6, residual=True).eval()

    def f(x, mask):
        return attention(x, mask=mask)

    return f, lambda n: (tensor(1, n, 16), tensor(1, n, seed=1) > -2)


@program("torchmin")
def torchmin_rosenbrock():
    import torch
    from torchmin import minimize

    def rosenbrock(x):
        return torch.sum(100 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1 - x[..., :-1]) ** 2)

    def f(x):
        found = minimize(rosenbrock, x, method="bfgs", max_iter=6)
        return found.x, found.fun

    return f, lambda n: (tensor(n),)


@program("deepdiff")
def deepdiff_of_settings():
    from deepdiff import DeepDiff

    def f(x, scale):
        old, new = {"scale": scale, "layers": [1, 2, 3], "name": "a"}, {"scale": scale * 2, "layers": [1, 2, 4], "extra": {"b": 1}}
        found = DeepDiff(old, new)
        return x * new["scale"], sorted(found), sorted(map(str, found["values_changed"]))

    return f, lambda n: (tensor(n, 2), 1.5)


@program("pyrr")
def pyrr_transforms():
    import numpy as np
    from pyrr import Matrix44, Quaternion, Vector3

    def f(angle, points):
        turned = Matrix44.from_translation([1.0, 2.0, 3.0]) * Quaternion.from_x_rotation(angle)
        return np.array(turned), np.array(turned * Vector3([1.0, 2.0, 3.0])), np.array([Quaternion.from_z_rotation(angle) * Vector3(p) for p in points])

    return f, lambda n: (0.1 * n, array(3, 3))


@program("quantities")
def quantities_of_arrays():
    import quantities as pq

    def f(x):
        distance = x * pq.meter
        speed = (distance / (2.0 * pq.second)).rescale("km/h")
        return speed.magnitude, str(speed.dimensionality), float(distance.sum().rescale("cm"))

    return f, lambda n: (array(n),)


@program("fastdtw")
def fastdtw_distance():
    from fastdtw import fastdtw

    def f(x, y):
        distance, path = fastdtw(x, y, dist=lambda a, b: abs(a - b))
        return float(distance), path

    return f, lambda n: (array(n), array(n + 2, seed=1))
