"""Errors that torch raises: caught by the user, not caught, in callees, with what was done before them."""

import torch
from harness import Programs

program = Programs("torch")


def t(*shape):
    return torch.ones(shape)


@program
def shape_error_leaves():
    def f(x, w):
        y = x + 1
        return y @ w

    return f, lambda: (t(2, 3), t(4, 5))


@program
def shape_error_in_callees():
    def inner(x, w):
        return torch.nn.functional.linear(x, w)

    def middle(x, w):
        y = x * 2
        return inner(
            y,
            w,
        )

    def f(x, w):
        return middle(x, w) + 1

    return f, lambda: (t(2, 3), t(4, 5))


@program
def shape_error_caught():
    def f(x, w):
        try:
            y = x @ w
        except RuntimeError as error:
            y = x * 2
            print(str(error).splitlines()[0])
        return y + 1

    return f, lambda: (t(2, 3), t(4, 5))


@program
def writes_before_an_error_stay():
    def f(x, log):
        x.add_(1)
        log.append("before")
        x[0] = 5
        y = x @ t(9, 9)
        log.append("after")
        return y

    return f, lambda: (t(2, 3), [])


@program
def error_in_a_loop():
    def f(x):
        total = x
        for size in (3, 3, 4):
            total = total + torch.ones(size)
        return total

    return f, lambda: (t(3),)


@program
def error_only_sometimes():
    def f(x, n):
        return x.view(n, -1) * 2

    sizes = iter([2, 5, 3])
    return f, lambda: (t(6), next(sizes))


@program
def index_errors():
    def f(x):
        out = []
        for index in (5, -4, (0, 0), None, slice(0, 9)):
            try:
                out.append(x[index])
            except (IndexError, TypeError) as error:
                out.append(str(error))
        return out

    return f, lambda: (t(3),)


@program
def type_errors_of_calls():
    def f(x):
        texts = []
        for call in (lambda: torch.add(x), lambda: torch.relu(3), lambda: x.sum(dim="a"), lambda: torch.cat(x, x, x), lambda: x + "s", lambda: x.nothing, lambda: torch.nothing(x), lambda: torch.zeros(2, kind=3)):
            try:
                call()
            except (TypeError, AttributeError) as error:
                texts.append((type(error).__name__, str(error).splitlines()[0]))
        return texts, x * 2

    return f, lambda: (t(3),)


@program
def dtype_errors():
    def f(x, i):
        texts = []
        for call in (lambda: x @ i.view(3, 1), lambda: torch.sigmoid_(i), lambda: i.add_(1.5), lambda: i.mean(), lambda: x.bool() - x.bool(), lambda: ~x, lambda: i.exp_()):
            try:
                call()
            except RuntimeError as error:
                texts.append(str(error).splitlines()[0])
        return texts, i

    return f, lambda: (t(1, 3), torch.arange(3))


@program
def out_of_range_dimension():
    def f(x):
        try:
            return x.softmax(5)
        except IndexError as error:
            return str(error), x.sum(-1)

    return f, lambda: (t(2, 3),)


@program
def error_of_user_with_tensor():
    class Bad(Exception):
        pass

    def f(x):
        y = x * 2
        try:
            raise Bad(y, "payload")
        except Bad as error:
            return error.args[0] + 1, error

    return f, lambda: (t(3),)


@program
def error_passes_finally_with_tensor_work():
    def f(x, log):
        try:
            y = x + t(7)
        finally:
            x.mul_(2)
            log.append(float(x.sum()))
        return y

    return f, lambda: (t(3), [])


@program
def error_in_backward():
    def f(x):
        y = x.exp()
        y.add_(1)
        try:
            y.sum().backward()
        except RuntimeError as error:
            print(str(error)[:60])
        return y.detach()

    return f, lambda: (t(3).requires_grad_(),)


@program
def error_while_formatting():
    def f(x):
        y = x + 1
        try:
            return f"{y:.2f}"
        except (TypeError, ValueError) as error:
            return str(error), f"{y.sum():.2f}", y

    return f, lambda: (t(3),)


@program
def data_dependent_errors():
    def f(x, i):
        y = x + 1
        try:
            z = y.gather(0, i)
        except (RuntimeError, IndexError) as error:
            z = str(error).splitlines()[0]
        return z, y.index_select(0, i.clamp(max=2)), torch.nonzero(x), torch.unique(i), x[x > 2], x.tolist(), x.sum().item()

    return f, lambda: (t(3), torch.tensor([0, 2, 7]))


@program
def item_of_many_fails():
    def f(x):
        y = x * 2
        return y.item()

    return f, lambda: (t(3),)


@program
def bool_of_many_fails():
    def f(x):
        y = x * 2
        if y:
            return 1
        return 2

    return f, lambda: (t(3),)


@program
def deprecated_function_warns():
    def f(x):
        y = x.t() + 1
        return y, torch.arange(6).reshape(1, 2, 3).T

    return f, lambda: (t(3),)


@program
def numpy_and_torch_together():
    import numpy as np

    def f(x, a):
        shared = torch.from_numpy(a)
        shared.add_(1)
        n = x.numpy()
        n[0] = 9
        return shared * 2, np.exp(n), x + 1, torch.as_tensor(a), a

    return f, lambda: (t(3), np.arange(3.0))


@program
def calls_back_into_compiled_code():
    def g(x):
        return x * 3

    def f(x, depth=2):
        return g(x) if depth == 0 else f(x + 1, depth - 1) + g(x)

    return f, lambda: (t(3),)
