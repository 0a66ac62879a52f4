"""Gradients, hooks, grad modes, custom functions: inside of the function and after it."""

import torch
from harness import Programs

program = Programs("torch")


def leaf(*shape):
    count = 1
    for size in shape:
        count *= size
    return ((torch.arange(count) % 7) - 2.5).reshape(shape).requires_grad_()


@program
def gradients_of_the_result():
    def f(x, w):
        return torch.tanh(x @ w).sum(0)

    return f, lambda: (leaf(4, 3), leaf(3, 2))


@program
def only_some_inputs_want_gradients():
    def f(x, w, b):
        y = x * w
        return y + b, (x * 2).detach(), b * 2

    return f, lambda: (leaf(3).detach(), leaf(3), leaf(3).detach())


@program
def backward_inside():
    def f(x):
        y = (x * x).sum()
        y.backward()
        return x.grad * 2, y

    return f, lambda: (leaf(4),)


@program
def backward_accumulates():
    def f(x):
        for _ in range(2):
            (x * 3).sum().backward()
        g = x.grad.clone()
        x.grad = None
        return g, x.grad

    return f, lambda: (leaf(4),)


@program
def grad_inside_and_second_order():
    def f(x):
        y = (x**3).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
        return g, h

    return f, lambda: (leaf(4),)


@program
def no_grad_inside():
    def f(x):
        y = x * 2
        with torch.no_grad():
            z = y + 1
        return y, z, torch.is_grad_enabled()

    return f, lambda: (leaf(3),)


@program
def enable_grad_inside_no_grad():
    @torch.no_grad()
    def f(x):
        with torch.enable_grad():
            y = x * 2
        return y, x * 3

    return f, lambda: (leaf(3),)


@program
def called_under_changing_modes():
    def f(x):
        return x * 2, torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    calls = []

    def run(x):
        calls.append(0)
        with torch.no_grad() if len(calls) == 2 else torch.enable_grad():
            return f(x)

    return run, lambda: (leaf(3),)


@program
def inference_mode_inside():
    def f(x):
        with torch.inference_mode():
            y = x * 2
        return y, y.is_inference()

    return f, lambda: (leaf(3).detach(),)


@program
def inference_tensor_input():
    def f(x, y):
        return x + y, x * 2

    def make():
        with torch.inference_mode():
            x = leaf(3).detach() * 1
        return x, leaf(3).detach()

    return f, make


@program
def writes_inference_tensor_outside_fails():
    def f(x):
        y = x + 1
        x.add_(1)
        return y

    def make():
        with torch.inference_mode():
            return (torch.ones(3),)

    return f, make


@program
def grad_mode_is_left_changed():
    def f(x):
        y = x * 2
        torch.set_grad_enabled(not torch.is_grad_enabled())
        return y, x * 3

    return f, lambda: (leaf(3),)


@program
def requires_grad_set_inside():
    def f(x):
        y = x * 2
        y.requires_grad_()
        z = (y * y).sum()
        z.backward()
        return y.grad, z

    return f, lambda: (leaf(3).detach(),)


@program
def in_place_on_leaf_fails():
    def f(x):
        y = x * 2
        x.add_(1)
        return y

    return f, lambda: (leaf(3),)


@program
def in_place_on_leaf_under_no_grad():
    def f(x):
        y = x * x
        with torch.no_grad():
            x.add_(1)
        return x * 2

    return f, lambda: (leaf(3),)


@program
def saved_tensor_overwritten():
    def f(x):
        y = torch.exp(x)
        z = y * 2
        y.add_(1)
        return z, y

    return f, lambda: (leaf(3),)


@program
def saved_input_overwritten_by_callee():
    def f(x, w):
        y = x * w
        w.add_(1)
        return y

    return f, lambda: (leaf(3), leaf(3).detach())


@program
def hook_on_intermediate():
    def f(x, log):
        y = x * 2
        y.register_hook(lambda g: log.append(float(g.sum())) or g * 10)
        return (y * y).sum()

    return f, lambda: (leaf(3), [])


@program
def hook_on_input():
    def f(x):
        return (x * 3).sum()

    def make():
        x = leaf(3)
        x.register_hook(lambda g: g * 100)
        return (x,)

    return f, make


@program
def retain_grad_inside():
    def f(x):
        y = x * 2
        y.retain_grad()
        y.sum().backward()
        return y.grad, x.grad

    return f, lambda: (leaf(3),)


@program
def custom_function():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 7 + x * 0

    def f(x):
        return Double.apply(x + 1) * 3

    return f, lambda: (leaf(3),)


@program
def custom_function_marks_dirty():
    class AddOne(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.add_(1)

        @staticmethod
        def backward(ctx, g):
            return g * 5

    def f(x):
        y = x * 2
        z = AddOne.apply(y)
        return z, z is y

    return f, lambda: (leaf(3),)


@program
def straight_through():
    def f(x):
        q = torch.round(x)
        return x + (q - x).detach(), torch.where(x > 0, x, x.detach() * 2)

    return f, lambda: (leaf(4),)


@program
def checkpointed():
    from torch.utils.checkpoint import checkpoint

    def block(x, w):
        return torch.relu(x @ w)

    def f(x, w):
        return checkpoint(block, x, w, use_reentrant=False)

    return f, lambda: (leaf(3, 3), leaf(3, 3))


@program
def views_and_in_place_under_autograd():
    def f(x):
        y = x * 1
        y[0] = y[1] * 2
        y.t().mul_(3)
        return y

    return f, lambda: (leaf(3, 3),)


@program
def double_use_and_unused():
    def f(x, w, unused):
        y = x * w
        return y + y * w, y.detach() * unused.sum().item()

    return f, lambda: (leaf(3), leaf(3), leaf(3))


@program
def functional_transforms():
    def f(x):
        gradient = torch.func.grad(lambda v: (v**2).sum())(x)
        mapped = torch.func.vmap(lambda row: row.sum() * 2)(x.reshape(2, 2))
        _, tangent = torch.func.jvp(lambda v: v * v, (x,), (torch.ones_like(x),))
        return gradient, mapped, tangent

    return f, lambda: (leaf(4).detach(),)


@program
def forward_mode_dual_input():
    import torch.autograd.forward_ad as fwd

    def f(x):
        return x * x

    def run(x):
        with fwd.dual_level():
            y = f(fwd.make_dual(x, torch.ones_like(x)))
            primal, tangent = fwd.unpack_dual(y)
            return primal.clone(), tangent.clone()

    return run, lambda: (leaf(3).detach(),)


@program
def optimizer_step_inside():
    def f(w, x, optimizer):
        optimizer.zero_grad()
        loss = ((w * x).sum() - 1) ** 2
        loss.backward()
        optimizer.step()
        return loss

    def make():
        w = leaf(3)
        return w, leaf(3).detach(), torch.optim.SGD([w], lr=0.01, momentum=0.9)

    return f, make


@program
def autocast_inside():
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y, x @ w, torch.is_autocast_enabled("cpu")

    return f, lambda: (leaf(3, 3).detach(), leaf(3, 3).detach())


@program
def default_dtype_changes():
    def f(x):
        torch.set_default_dtype(torch.float64)
        try:
            return torch.ones(2) + x, torch.tensor(1.5).dtype
        finally:
            torch.set_default_dtype(torch.float32)

    return f, lambda: (leaf(2).detach(),)


@program
def anomaly_and_saved_tensor_hooks():
    def f(x):
        log = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: log.append("pack") or t, lambda t: t):
            y = x.exp()
        return y, log

    return f, lambda: (leaf(3),)
