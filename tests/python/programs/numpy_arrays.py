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
def overlapping_windows():
    def f(x, y):
        x[...] = 3 * y
        before = x.sum()
        x[::2] = y[1::2]
        y += 1
        np.multiply(y[1], 2, out=y[1])
        return before, x * 1, y - x

    windows = np.lib.stride_tricks.as_strided
    return f, lambda: (windows(a(7), (4, 4), (8, 8)), windows(a(10), (4, 4), (16, 8)))


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


@program
def masks_and_fancy_assignment():
    def f(x, i):
        y = x.copy()
        y[y < 0] = 0
        y[i] = -y[i]
        y[i, ...] += 10
        y[:, 0][y[:, 0] > 5] = 5
        y[[0, 1], [1, 2]] = [7, 8]
        y[np.array([True, False, False])] *= 2
        return y, x[x > 1], y[i][:, ::-1], x[np.ix_([0, 2], [1, 3])], np.nonzero(x)

    return f, lambda: (a(3, 4), np.array([2, 0]))


@program
def structured_and_object_arrays():
    def f(table, objects):
        table["weight"] *= 2
        table["position"][:, 0] = table["weight"]
        picked = table[table["weight"] > 3]
        objects[0] = objects[1]
        objects[2].append(1)
        return picked["name"].tolist(), table["position"].sum(0), objects * 2, table[["name", "weight"]].shape, table[0]["weight"]

    dtype = [("name", "U4"), ("weight", "f8"), ("position", "f4", 2)]
    return f, lambda: (np.array([("a", 1.0, (1, 2)), ("b", 2.0, (3, 4))], dtype=dtype), np.array([1, "b", [2]], object))


@program
def where_with_one_argument():
    def f(x):
        rows, columns = np.where(x > 2)
        return rows, columns, x[rows, columns], np.where(x > 0, x, -x), np.argwhere(x == 0), np.flatnonzero(x > 3)

    return f, lambda: (a(4, 5),)


@program
def ufunc_out_and_where():
    def f(x, y, out):
        quotient = np.divide(x, y, out=np.zeros_like(x), where=y != 0)
        np.sqrt(np.abs(x), out=out)
        out = np.add(out, 1, out=out)
        np.add(x[:, None], y, out=np.empty((5, 5)))
        return quotient, out, np.log(x, where=x > 0, out=np.full(5, -1.0)), np.minimum.reduce(x, where=x > -4, initial=9)

    return f, lambda: (a(5), a(5) * np.array([0, 1, 2, 0, 1]), np.zeros(5))


@program
def casting_errors():
    def f(i, u, x):
        texts = []
        for call in (lambda: i.__iadd__(1.5), lambda: np.add(i, 1, out=u, casting="safe"), lambda: x.astype("i4", casting="safe"),
                     lambda: np.array([300]).astype(np.uint8), lambda: u + 300, lambda: i ** np.array(-1), lambda: x & 1, lambda: np.uint8(-1),
                     lambda: x.reshape(2, 2), lambda: np.concatenate([x, x[None]]), lambda: x.view(np.int32).sum()):  # fmt: skip
            try:
                texts.append(call())
            except (TypeError, ValueError, OverflowError) as error:
                texts.append((type(error).__name__, str(error)))
        return texts, i, u

    return f, lambda: (np.arange(3), np.arange(3, dtype=np.uint8), a(3))


@program
def in_place_promotion():
    def f(i, h, x):
        h += 1.0
        h *= x[:3]
        i //= 2
        i += True
        try:
            i += x[:3]
        except TypeError as error:
            print(error)
        i **= 2
        x[1:] -= i[0]
        return i, h, x

    return f, lambda: (np.arange(3, dtype=np.int32), a(3, dtype=np.float16), a(5))


@program
def global_random_state():
    def f(x):
        noise = np.random.normal(size=x.shape)
        y = x + noise * 0.1
        order = np.random.permutation(len(x))
        np.random.shuffle(x)
        return y[order], x, np.random.randint(0, 9, 3), np.random.choice(x, 2)

    def make():
        np.random.seed(11)
        return (a(6),)

    return f, make


@program
def writes_through_views():
    def f(image, other):
        inner = image[1:-1, 1:-1]
        inner += 1
        inner[..., 0] = other[0]
        image.T[0] = 9
        image.reshape(-1)[::7] = -1
        np.fill_diagonal(image, 5)
        column = image[:, 1]
        image[:] = image[::-1]
        column[:] = column[::-1] * 2
        row = image[2]
        image[0], image[1] = image[1].copy(), image[0].copy()
        return image, inner, column, row, np.shares_memory(row, image), image.base is None

    return f, lambda: (a(5, 5), a(3, 3))


@program
def broadcasting_assignment():
    def f(x, y):
        x[...] = y
        x[:, ::2] = y[:, :1]
        x[1:, None] += 1
        x[0] = 4
        view = np.broadcast_to(y, (2, 3, 1))
        try:
            view[0] = 1
        except ValueError as error:
            print(error)
        try:
            x[:, 1] = np.arange(5)
        except ValueError as error:
            print(error)
        return x, view, np.atleast_2d(y).shape, np.expand_dims(x, 0)[0, 1]

    return f, lambda: (a(3, 4), a(3, 1))


@program
def subclass_with_ufunc():
    class Logged(np.ndarray):
        calls = 0

        def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
            Logged.calls += 1
            return getattr(ufunc, method)(*[np.asarray(i) for i in inputs], **kwargs).view(Logged)

        def __getitem__(self, key):
            return np.asarray(self)[key] * 2

    def f(x, plain):
        y = x + plain
        return y, x[1], type(plain * x).__name__, np.exp(plain), np.matrix(plain.reshape(2, 2)) * 2, Logged.calls, x.sum()

    return f, lambda: (a(4).view(Logged), a(4))


@program
def vectorized_function():
    calls = []

    @np.vectorize
    def step(v, limit=2):
        calls.append(v)
        return v if v < limit else limit

    def f(x):
        return step(x), step(x * 2, 5), np.apply_along_axis(lambda row: row.sum() - row[0], 1, x.reshape(2, 3)), np.frompyfunc(abs, 1, 1)(x), len(calls)

    return f, lambda: (a(6),)


@program
def nested_errstate():
    def f(x):
        with np.errstate(divide="ignore", invalid="warn"):
            inverse = 1 / x
            with np.errstate(all="raise"):
                try:
                    np.log(x)
                except FloatingPointError as error:
                    print(error)
            root = np.sqrt(x)
        big = np.exp(x * 1000)
        return inverse, root, big, np.float32(1e30) * np.float32(1e30), x[0] / 0, np.geterr()["divide"]

    return f, lambda: (a(7),)


@program
def errors_call_a_handler():
    def f(x):
        seen = []
        with np.errstate(divide="call", call=lambda kind, flag: seen.append((kind, flag))):
            y = 1 / x
            z = np.log(x * 0)
        return y, z, seen

    return f, lambda: (a(7),)


@program
def unread_results_warn():
    def f(x):
        np.log(x)
        y = 1 / x
        return y[:3], np.sqrt(x)[x > 2], (x / x)[::2].sum()

    return f, lambda: (a(9),)


@program
def indices_out_of_range():
    def f(x, i):
        texts = []
        for call in (lambda: x[i], lambda: np.take(x, i), lambda: x[i, 0], lambda: x[7], lambda: np.take(x, i, mode="wrap"), lambda: x[[0, -4]]):
            try:
                texts.append(call())
            except IndexError as error:
                texts.append(str(error))
        try:
            np.take(x[:1, 0], i)
        except IndexError as error:
            texts.append(str(error))
        return texts, (x * 2)[i[:2]]

    return f, lambda: (a(3, 2), np.array([0, -1, 3]))


@program
def overflow_in_place():
    def f(x, y):
        x *= 1e300
        y += x[:2]
        x /= y.sum()
        return x

    return f, lambda: (a(4) * 1e300, np.zeros(2))


@program
def integer_division_by_zero():
    def f(i, d, s):
        return i // d, i % d, i // 0, np.divmod(i, d), i[0] // s, s // i

    return f, lambda: (np.array([1, -2, 0, 7], np.int32), np.array([0, 3, 0, -2], np.int32), np.int64(0))


@program
def statistics_of_little():
    def f(x):
        return x[:0].sum(), x[:0].mean(), x[:1].std(ddof=1), np.var(x, ddof=3), np.nanmean(x * np.nan), np.median(x), np.percentile(x, 30), x.argmax()

    return f, lambda: (a(3),)


@program
def strides_and_flags_of_results():
    def f(x, order):
        y = np.asfortranarray(x)
        results = [y * 2, y[::2] + 1, (x.T + y.T), np.where(y > 0, y, 0), y[:, ::-1] * x, np.copy(y), np.exp(y.swapaxes(0, 2)), y.sum(1), y.mean((0, 2)),
                   np.ones_like(y), y.astype("f4"), np.stack([y, y], -1), y.reshape(-1, order=order), x.transpose(1, 0, 2) * 1.0]  # fmt: skip
        return results, [(r.flags.c_contiguous, r.flags.f_contiguous, r.flags.owndata) for r in results]

    return f, lambda: (a(2, 3, 4), "F")


@program
def scalars_in_and_out():
    def f(x, s, k):
        y = x * s + k
        total = y.sum()
        return (total, total * 2, s * s, s + 1, k ** 2, s / k, np.add(s, k), x[0] + s, total > 3, float(total), y[()], np.float32(3) * x[1], abs(s), -k,
                round(float(s), 1), s.dtype, type(s + k).__name__, divmod(k, 3), s // 2, x.max() - x.min(), x[np.int64(1)], [s, k][k % 2], x.shape[0] * s)  # fmt: skip

    return f, lambda: (a(4), np.float64(2.25), np.int32(5))
