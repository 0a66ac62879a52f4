"""Tensors that share memory, change under the function's feet, or are strange in shape, stride or type."""

import torch
from harness import Programs

program = Programs("torch")


def t(*shape, dtype=torch.float32):
    """Fresh, distinct, exactly representable values."""
    count = 1
    for size in shape:
        count *= size
    return ((torch.arange(count) % 13) - 5).to(dtype).reshape(shape) / (2 if dtype.is_floating_point else 1)


@program
def same_tensor_twice():
    def f(a, b):
        a.add_(1)
        return b * 2

    def make():
        x = t(4)
        return x, x

    return f, make


@program
def same_tensor_once_then_not():
    def f(a, b):
        a.mul_(3)
        return a + b

    calls = []

    def make():
        calls.append(0)
        x = t(4)
        return (x, x) if len(calls) == 2 else (x, t(4))

    return f, make


@program
def overlapping_slices():
    def f(a, b):
        a.add_(b)
        return b.sum()

    def make():
        x = t(6)
        return x[:-2], x[2:]

    return f, make


@program
def returns_its_input():
    def f(x, y):
        y = y + 1
        return x, y, x

    return f, lambda: (t(3), t(3))


@program
def returns_views_of_input():
    def f(x):
        return x.t(), x[1:], x.view(-1), x[:, None].expand(2, 3, 3)

    return f, lambda: (t(2, 3),)


@program
def outputs_share_storage():
    def f(x):
        y = x * 2
        return y, y[0], y.t(), [y, y]

    return f, lambda: (t(3, 3),)


@program
def write_through_a_view():
    def f(x):
        row = x[1]
        row.fill_(9)
        x[:, 0] -= 1
        return row, x.sum()

    return f, lambda: (t(3, 3),)


@program
def write_through_view_of_temporary():
    def f(x):
        y = x + 1
        y.view(-1)[::2].zero_()
        y.t()[0].neg_()
        return y

    return f, lambda: (t(3, 4),)


@program
def in_place_on_expanded_fails():
    def f(x):
        return x.expand(3, 4).add_(1)

    return f, lambda: (t(1, 4),)


@program
def input_is_expanded():
    def f(x, y):
        return x + y, (x * y).sum(0), x

    return f, lambda: (t(1, 4).expand(3, 4), t(3, 1).expand(3, 4))


@program
def resizes_an_input():
    def f(x):
        y = x * 2
        x.resize_(x.shape[0] // 2, 1)
        return y, x

    return f, lambda: (t(4),)


@program
def assigns_data():
    def f(x, y):
        x.data = y * 2
        return x + 1

    return f, lambda: (t(4), t(2, 2))


@program
def swaps_storage_with_set():
    def f(x, y):
        x.set_(y)
        y.add_(1)
        return x * 2

    return f, lambda: (t(4), t(4) + 1)


@program
def detach_shares():
    def f(x):
        d = x.detach()
        d.mul_(2)
        return d, x + 0

    return f, lambda: (t(4),)


@program
def out_argument():
    def f(a, b, c):
        return torch.add(a, b, out=c), torch.mul(a, 2, out=a)

    return f, lambda: (t(4), t(4), torch.zeros(4))


@program
def out_argument_resized_with_warning():
    def f(a, c):
        torch.exp(a, out=c)
        return c

    return f, lambda: (t(4), torch.ones(3))


@program
def as_strided_overlap():
    def f(x):
        y = x.as_strided((3, 3), (1, 1))
        return y, y * 2

    return f, lambda: (t(5),)


@program
def transposed_self_copy():
    def f(x):
        x.copy_(x.t().clone())
        return x.t()

    return f, lambda: (t(3, 3),)


@program
def broadcast_in_place():
    def f(x, y):
        x += y
        x *= x
        return x

    return f, lambda: (t(3, 4), t(4))


@program
def index_put_accumulates():
    def f(x, i, v):
        x.index_put_((i,), v, accumulate=True)
        return x[i]

    return f, lambda: (t(5), torch.tensor([0, 0, 3]), torch.ones(3))


@program
def mask_assignment():
    def f(x):
        x[x > 0] = -1
        return x[x < 0], x

    return f, lambda: (t(8),)


@program
def mutates_tensors_of_a_list():
    def f(tensors, extra):
        for i, x in enumerate(tensors):
            x.mul_(i + 2)
        tensors.append(extra)
        tensors[0] = tensors[1]
        return sum(tensors)

    return f, lambda: ([t(3), t(3)], t(3))


@program
def chunks_share():
    def f(x):
        a, b = x.chunk(2)
        a.add_(b)
        return a, b, list(x.split([1, 3])), x.unbind(0)[0]

    return f, lambda: (t(4, 2),)


@program
def reshape_copies_or_views():
    def f(x):
        y = x.reshape(-1)
        y.add_(1)
        return y, x

    calls = []

    def make():
        calls.append(0)
        return (t(3, 4).t() if len(calls) == 2 else t(3, 4),)

    return f, make


@program
def contiguous_is_the_same_object():
    def f(x):
        c = x.contiguous()
        return c is x, c, x.to(torch.float32) is x, x.float() is x, x.clone() is x

    calls = []

    def make():
        calls.append(0)
        return (t(3, 4).t() if len(calls) == 3 else t(3, 4),)

    return f, make


@program
def channels_last_strides():
    def f(x):
        return x + 1, torch.relu(x), x.contiguous(), x.mean((2, 3), keepdim=True) + x, torch.empty_like(x).fill_(2)

    return f, lambda: (t(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),)


@program
def permuted_strides_of_results():
    def f(x, y):
        return x + y, y + x, x * 2, torch.where(x > 0, x, y), torch.zeros_like(x)

    return f, lambda: (t(2, 3, 4).permute(2, 0, 1), t(4, 2, 3))


@program
def strided_input_with_offset():
    def f(x):
        return x * 2, x.sum(1), x[..., 1:]

    return f, lambda: (t(6, 8)[1::2, 2::3],)


@program
def empty_tensors():
    def f(x):
        return x + 1, x.sum(), x.sum(0), x.prod(1), x.mean(0), torch.cat([x, x], 1), x @ x.t(), x.t() @ x

    return f, lambda: (torch.empty(0, 3),)


@program
def maximum_of_nothing_fails():
    def f(x):
        y = x * 2
        return y.max()

    return f, lambda: (torch.empty(0),)


@program
def zero_dimensional():
    def f(x, y):
        return x + y, x * 2, y.sum(), x.reshape(1), x.expand(3), torch.softmax(x, 0), x.max(), y[..., None]

    return f, lambda: (torch.tensor(1.5), torch.tensor(2, dtype=torch.int64))


@program
def iterating_zero_dimensional_fails():
    def f(x):
        return [row for row in x.sum()]

    return f, lambda: (t(3),)


@program
def promotion():
    def f(i, u, b, h, d):
        return (i + 1.5, i / 2, i // 2, u + i, b + b, b * 3, b & (i > 0), h + d[0], h * d, u - 200, ~b, i % 3, -i // 3,
                torch.add(i, 2, alpha=3), h + 1e6, i.float() + h, torch.tensor(2.5) * i, d[0] + i)  # fmt: skip

    return f, lambda: (t(5, dtype=torch.int32), torch.arange(5, dtype=torch.uint8) * 60, torch.tensor([True, False, True, True, False]),
                       t(5).half(), t(5, dtype=torch.float64))  # fmt: skip


@program
def integer_overflow_wraps():
    def f(a, b):
        return a * a, a + 100, -b, b.abs(), b - 1, a << 3, a >> 1, (a.long() * 2**60).sum()

    return f, lambda: (torch.tensor([100, -100, 127, -128], dtype=torch.int8), torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32))


@program
def integer_power_negative_fails():
    def f(x):
        y = x + 1
        return y ** -2

    return f, lambda: (t(4, dtype=torch.int64),)


@program
def special_values():
    def f(x):
        return (x + 1, x * 0, 0 / x, torch.maximum(x, x.flip(0)), x.clamp(-1, 1), x.max(), x.sign(), torch.round(x), torch.sqrt(x),
                torch.exp(x), torch.tanh(x), torch.relu(x), x == x, torch.nan_to_num(x), torch.softmax(x[:3], 0), x % 2, x.sum(),
                torch.where(x > 0, x, -x), torch.isnan(x), x.cumsum(0), torch.sort(x).indices, torch.fmin(x, -x))  # fmt: skip

    inf, nan = float("inf"), float("nan")
    return f, lambda: (torch.tensor([0.0, -0.0, 1.0, -2.5, 0.5, 3.5, inf, -inf, nan, 1e-45, 3e38]),)


@program
def sign_of_zero():
    def f(x):
        return torch.signbit(x * -1), torch.signbit(-x), torch.copysign(torch.ones_like(x), x), 1 / (x + 0), 1 / (x * -1), x - x

    return f, lambda: (torch.tensor([0.0, -0.0, 2.0]),)


@program
def complex_numbers():
    def f(x):
        y = x.conj()
        return y, y * x, x.abs(), x.real, torch.view_as_real(x), x.imag + 1, x * 2j, y.is_conj()

    return f, lambda: (torch.tensor([1 + 2j, -3.5j, 2 + 0j]),)


@program
def complex_parts_written_later():
    def f(x):
        y = x * 1
        real, imag, both = x.real, y.imag, torch.view_as_real(y)
        x.mul_(1j)
        y += 2
        return real, real + imag, both, both.sum(), x, y

    return f, lambda: (torch.tensor([1 + 2j, -3.5j, 2 + 0j]),)


@program
def negative_bit_input():
    def f(x):
        return x + 1, x, x.is_neg()

    return f, lambda: (torch.tensor([1 + 2j, 3 - 4j]).conj().imag,)


@program
def sparse_input():
    def f(x, y):
        return torch.sparse.mm(x, y) + 1

    return f, lambda: (torch.eye(3).to_sparse(), t(3, 3))


@program
def tensor_subclass():
    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            print(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    def f(x, y):
        return x * 2 + y

    return f, lambda: (t(3).as_subclass(Logged), t(3))


@program
def shares_after_deepcopy():
    import copy

    def f(pair):
        twin = copy.deepcopy(pair)
        twin[0].add_(1)
        return twin, pair

    def make():
        x = t(4)
        return ([x, x, x[1:]],)

    return f, make


@program
def view_made_by_the_caller_of_an_output():
    def f(x, keep):
        y = x * 2
        keep.append(y[1:])
        return y

    return f, lambda: (t(4), [])


@program
def write_after_read_order():
    def f(x):
        a = x + 1
        x.mul_(2)
        b = x + 1
        x[0] = 100
        c = x.clone()
        x.zero_()
        return a, b, c

    return f, lambda: (t(3),)


@program
def nothing_but_python():
    def f(x, n):
        return {"n": n * 2, "same": x}, [n] * 3, f"{n:03d}"

    return f, lambda: (t(2), 7)


@program
def different_sizes_each_call():
    def f(x):
        return x.sum(0) / x.shape[0], x.view(-1).shape[0], x.reshape(x.size(1), -1)

    sizes = iter([2, 5, 1])
    return f, lambda: (t(next(sizes), 3),)


@program
def different_dtypes_each_call():
    def f(x):
        return x * 2 + 1, x.mean() if x.is_floating_point() else x.sum()

    dtypes = iter([torch.float32, torch.int64, torch.float64])
    return f, lambda: (t(4, dtype=next(dtypes)),)
