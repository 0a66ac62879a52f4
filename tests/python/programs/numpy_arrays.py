"""NumPy: views with negative strides, scalars, promotion, warnings, read-only and foreign arrays."""

import numpy as np
from harness import Programs

program = Programs("numpy")


def a(*shape, dtype=np.float64):
    count = int(np.prod(shape))
    return ((np.arange(count) % 13) - 5).astype(dtype).reshape(shape)


@program
def negative_strides():
    def f(x):
        return x[::-1], x[::-1] * 2, x[:, ::-1].T + 1, np.flip(x), x[::-2].sum(0)

    return f, lambda: (a(5, 3)[::-1],)


@program
def overlapping_update():
    def f(x):
        x[1:] += x[:-1]
        x[::-1][:2] = 7
        return x

    return f, lambda: (a(6),)


@program
def aliasing_arguments():
    def f(x, y):
        x *= 2
        return y + 1, y

    def make():
        x = a(6)
        return x[:4], x[2:]

    return f, make


@program
def scalars_are_not_arrays():
    def f(x):
        return x.sum(), x[0], x.mean() + 1, np.float32(2) * x[1], x[1:2], x.max(), float(x[2]), np.sqrt(x[3])

    return f, lambda: (a(6) + 6,)


@program
def zero_dimensional_array():
    def f(x):
        return x + 1, x * x, np.exp(x), x[()], x.reshape(1), x

    return f, lambda: (np.array(2.0),)


@program
def promotion():
    def f(i, u, h, d):
        return (i + 1.5, i / 2, i // 3, u + i, h + 1, h + d, u + np.uint8(7), i * np.float32(2), h * 1e3, np.add(i, 2, dtype=np.float32), u * 2, -i % 5,
                i > 1, np.where(i > 0, h, 0), np.float32(3) + 3.0, i ** 2, np.result_type(h, 1.0))  # fmt: skip

    return f, lambda: (a(5, dtype=np.int32), np.arange(5, dtype=np.uint8) * 60, a(5, dtype=np.float16), a(5))


@program
def unsigned_wraps():
    def f(u, i):
        return u - 1, u * 3, -u, i * i, i << 4, np.abs(i), ~u

    return f, lambda: (np.array([0, 1, 200, 255], np.uint8), np.array([-128, 127, 100, 1], np.int8))


@program
def division_warns():
    def f(x):
        y = 1 / x
        return y, np.log(x), np.sqrt(-x)

    return f, lambda: (a(6),)


@program
def errstate_raises():
    def f(x):
        with np.errstate(divide="raise"):
            return 1 / x

    return f, lambda: (a(6),)


@program
def errstate_ignores_then_warns():
    def f(x):
        with np.errstate(all="ignore"):
            y = np.log(x)
        return y, np.log(x[:2])

    return f, lambda: (a(6),)


@program
def out_and_where():
    def f(x, y, o):
        np.add(x, y, out=o)
        np.multiply(x, 2, out=x, where=x > 0)
        return o, x

    return f, lambda: (a(5), a(5), np.zeros(5))


@program
def read_only_fails():
    def f(x):
        y = x + 1
        x[0] = 3
        return y

    def make():
        x = a(4)
        x.flags.writeable = False
        return (x,)

    return f, make


@program
def broadcast_is_read_only():
    def f(x):
        y = np.broadcast_to(x, (3, 4))
        return y, y + 1, y.flags.writeable

    return f, lambda: (a(4),)


@program
def fancy_indexing():
    def f(x, i):
        x[i] += 1
        y = x[[0, 2]]
        y[:] = 0
        return x, y, x[x > 0], np.take(x, i), x[..., None].shape

    return f, lambda: (a(5), np.array([0, 0, 3]))


@program
def ufunc_methods():
    def f(x, i):
        np.add.at(x, i, 10)
        return np.add.reduce(x), np.multiply.accumulate(x), np.subtract.outer(x[:2], x), np.maximum.reduceat(x, [0, 2])

    return f, lambda: (a(5), np.array([1, 1, 4]))


@program
def subclass():
    class Tagged(np.ndarray):
        def __array_finalize__(self, source):
            self.tag = getattr(source, "tag", "none")

    def f(x):
        return x + 1, x[1:], (x * 2).tag, x.sum()

    def make():
        x = a(4).view(Tagged)
        x.tag = "mine"
        return (x,)

    return f, make


@program
def masked_arrays():
    def f(x):
        return (x + 1).filled(0), x.mean(), x.mask

    return f, lambda: (np.ma.array(a(5), mask=[0, 1, 0, 1, 0]),)


@program
def array_protocols():
    class Meters:
        def __init__(self, values):
            self.values = values

        def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
            return Meters(getattr(ufunc, method)(*[getattr(i, "values", i) for i in inputs], **kwargs))

    class Late:
        def __array__(self, dtype=None, copy=None):
            print("converted")
            return np.ones(3, dtype or float)

    def f(x, meters, late):
        return x * meters, np.sqrt(meters), x + late, np.sum(late)

    return f, lambda: (a(3), Meters(a(3) + 5), Late())


@program
def objects_strings_and_dates():
    def f(o, s, d):
        return o + o, s == "b", d - d[0], (d + np.timedelta64(1, "D")).astype(str).tolist(), np.sort(s)[::-1].tolist()

    return f, lambda: (np.array([1, "x", 2.5], object), np.array(["b", "a"]), np.array(["2024-02-28", "2025-01-01"], "M8[D]"))


@program
def structured():
    def f(x):
        x["n"] += 1
        return x["v"] * 2, x[0].item(), x[["n"]].dtype.names

    return f, lambda: (np.array([(1, 2.0), (3, 4.0)], dtype=[("n", "i4"), ("v", "f8")]),)


@program
def big_endian():
    def f(x):
        return x + 1, x.sum(), x[::2].copy()

    return f, lambda: (a(4, dtype=">f4"),)


@program
def fortran_order():
    def f(x):
        return x + 1, x.ravel("K"), x.T, np.zeros_like(x), x.copy(), x @ x.T, np.concatenate([x, x])

    return f, lambda: (np.asfortranarray(a(3, 4)),)


@program
def unaligned():
    def f(x):
        return x * 2, x.sum()

    return f, lambda: (np.frombuffer(b"\0" + a(4, dtype=np.float32).tobytes(), np.uint8)[1:].view(np.float32),)


@program
def shape_assignment():
    def f(x):
        y = x * 2
        x = x.reshape(2, 3)
        y.shape = (3, 2)
        return x @ y, y.T.base is y

    return f, lambda: (a(6),)


@program
def random_streams():
    def f(x, generator):
        np.random.seed(3)
        return x + np.random.rand(4), generator.normal(size=4) * x, np.random.permutation(4)

    return f, lambda: (a(4), np.random.default_rng(5))


@program
def linear_algebra_and_einsum():
    def f(x):
        q = x @ x.T + np.eye(3)
        return np.linalg.inv(q), np.linalg.norm(x), np.einsum("ij,kj->ik", x, x), np.dot(x[0], x[1]), np.linalg.solve(q, x[:, 0])

    return f, lambda: (a(3, 4) / 8,)


@program
def singular_matrix_fails():
    def f(x):
        y = x * 0
        try:
            np.linalg.inv(y)
        except np.linalg.LinAlgError as error:
            print("caught", error)
        return np.linalg.inv(y)

    return f, lambda: (a(3, 3),)


@program
def generators_over_arrays():
    def f(x):
        total = sum(v * v for v in x)
        pairs = list(zip(x, x[::-1]))
        return total, pairs, np.fromiter((v + 1 for v in x), float), [row.sum() for row in x.reshape(2, 3)]

    return f, lambda: (a(6),)


@program
def k_means_step():
    def f(points, centers):
        distances = ((points[:, None] - centers[None]) ** 2).sum(-1)
        label = distances.argmin(1)
        moved = np.stack([points[label == k].mean(0) if (label == k).any() else centers[k] for k in range(len(centers))])
        return moved, label

    return f, lambda: (a(40, 2) * np.linspace(1, 2, 40)[:, None], a(3, 2))


@program
def truth_value_of_array_fails():
    def f(x):
        y = x + 1
        if y:
            return y
        return x

    return f, lambda: (a(3),)


@program
def shape_mismatch_caught():
    def f(x, y):
        try:
            return x + y
        except ValueError as error:
            return str(error), x * 2

    return f, lambda: (a(3), a(4))
