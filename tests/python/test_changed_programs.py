"""Small programs of hooks, custom functions, views that are written, wrappers, attributes of classes and state of threads. Each is called several times, with
what it reads changed between the calls and sizes of 0 and 1, and says what eager says."""

# ruff: noqa
import collections
import contextvars
import functools
import gc
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
PROGRAMS = {}
# These are left to Python, or to the framework call by call.
LEFT = {"views_inplace", "detach_share", "saved_modified", "view_chain", "dispatch_mode_changes", "dispatch_attr", "wrapper_inplace"}


def prog(f):
    PROGRAMS[f.__name__] = f
    return f


def L(t):
    """What is compared of a value."""
    if isinstance(t, torch.Tensor):
        t = t.detach()
        return tuple(t.shape), [round(v, 4) for v in t.double().flatten().tolist()]
    return [L(i) for i in t] if isinstance(t, (tuple, list)) else t


@prog
def hook_order(c):
    def f(x):
        a = x * 2
        b = a.sin()
        return a, b, (a * b).sum()

    f = c(f)
    log = []
    for n in (0, 1, 3):
        x = torch.ones(n, requires_grad=True)
        x.register_hook(lambda g: log.append(("x", L(g))))
        a, b, l = f(x)
        a.register_hook(lambda g: log.append(("a", L(g))))
        b.register_hook(lambda g: (log.append(("b", L(g))), g * 2)[1])
        a.register_hook(lambda g: (log.append(("a2", L(g))), g + 1)[1])
        l.backward()
        log.append(L(x.grad))
    return log


@prog
def hook_removed_in_hook(c):
    def f(x):
        a = x * 2
        return a, (a * 3).sum()

    f = c(f)
    log = []
    for n in (1, 2):
        x = torch.ones(n, requires_grad=True)
        a, l = f(x)
        h2 = a.register_hook(lambda g: log.append("second"))
        h1 = a.register_hook(lambda g: (log.append("first"), h2.remove())[0])
        l.backward(retain_graph=True)
        l.backward()
        log.append(L(x.grad))
    return log


@prog
def hook_raises(c):
    def f(x):
        a = x * 2
        return a, (a * 3).sum()

    f = c(f)
    log = []
    for n in (1, 2):
        x = torch.ones(n, requires_grad=True)
        a, l = f(x)
        h = a.register_hook(lambda g: 1 / 0)
        try:
            l.backward(retain_graph=True)
        except Exception as e:
            log.append(type(e).__name__)
        h.remove()
        l.backward()
        log.append(L(x.grad))
    return log


@prog
def multi_any(c):
    def f(x):
        a = x * 2
        b = x * 3
        d = a * b
        return a, b, d, d.sum()

    f = c(f)
    log = []
    for mode in ("any", "all"):
        for n in (1, 2):
            x = torch.ones(n, requires_grad=True)
            a, b, d, l = f(x)
            if mode == "any":
                torch.autograd.graph.register_multi_grad_hook(
                    (a, b, d), lambda g: log.append(L(g)), mode="any"
                )
            else:
                torch.autograd.graph.register_multi_grad_hook(
                    (a, b, d), lambda gs: log.append(L(gs))
                )
            a.register_hook(lambda g: log.append("a"))
            d.register_hook(lambda g: log.append("d"))
            l.backward(retain_graph=True)
            (a.sum()).backward(retain_graph=True)
            log.append(L(x.grad))
    return log


@prog
def multi_any_order(c):
    def f(x):
        a = x * 2
        b = a + 1
        return a, b, b.sum()

    f = c(f)
    log = []
    for k in range(3):
        x = torch.ones(2, requires_grad=True)
        a, b, l = f(x)
        b.register_hook(lambda g: log.append("b1"))
        torch.autograd.graph.register_multi_grad_hook(
            (a, b), lambda g: log.append("any"), mode="any"
        )
        b.register_hook(lambda g: log.append("b2"))
        torch.autograd.graph.register_multi_grad_hook(
            (x, a), lambda g: log.append("any-xa"), mode="any"
        )
        a.register_hook(lambda g: log.append("a"))
        x.register_hook(lambda g: log.append("x"))
        l.backward()
    return log


@prog
def multi_any_view(c):
    def f(x):
        a = (x * 2).view(-1)
        b = a[0:1]
        return a, b, (a.sum() * b.sum())

    f = c(f)
    log = []
    for k in range(3):
        x = torch.ones(2, 2, requires_grad=True)
        a, b, l = f(x)
        torch.autograd.graph.register_multi_grad_hook(
            (a, b), lambda g: log.append(("any", L(g))), mode="any"
        )
        a.register_hook(lambda g: log.append(("a", L(g))))
        b.register_hook(lambda g: log.append(("b", L(g))))
        l.backward()
        log.append(L(x.grad))
    return log


@prog
def post_acc(c):
    def f(x, w):
        return (x @ w).relu().sum()

    f = c(f)
    log = []
    w = torch.ones(2, 2, requires_grad=True)
    w.register_post_accumulate_grad_hook(lambda p: log.append(L(p.grad)))
    for n in (0, 1, 2):
        f(torch.ones(n, 2), w).backward()
    return log


@prog
def saved_hooks(c):
    def f(x):
        return (x.sin() * x).sum()

    f = c(f)
    log = []
    for n in (1, 2):
        x = torch.ones(n, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.clone(), lambda t: t * 2
        ):
            l = f(x)
        l.backward()
        log.append(L(x.grad))
        l = f(x)
        l.backward()
        log.append(L(x.grad))
    return log


class Scale(torch.autograd.Function):
    k = 2

    @staticmethod
    def forward(ctx, x, s):
        ctx.s = s
        ctx.save_for_backward(x)
        return x * s

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.s * Scale.k, None


@prog
def cf_class_changes(c):
    def f(x):
        return Scale.apply(x, 3).sum()

    f = c(f)
    log = []
    for k in (2, 5, 2):
        Scale.k = k
        x = torch.ones(2, requires_grad=True)
        l = f(x)
        Scale.k = k + 1
        l.backward()
        log.append(L(x.grad))
    Scale.k = 2
    return log


@prog
def cf_needs(c):
    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return (g * b if ctx.needs_input_grad[0] else None), (
                g * a if ctx.needs_input_grad[1] else None
            )

    def f(a, b):
        return G.apply(a, b).sum()

    f = c(f)
    log = []
    for ra, rb in ((1, 0), (0, 1), (1, 1), (1, 0)):
        a = torch.full((2,), 2.0).requires_grad_(bool(ra))
        b = torch.full((2,), 3.0).requires_grad_(bool(rb))
        f(a, b).backward()
        log.append((L(a.grad), L(b.grad)))
    return log


@prog
def cf_two_outputs(c):
    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.set_materialize_grads(False)
            return a * 2, a * 3

        @staticmethod
        def backward(ctx, g, h):
            return (
                (0 if g is None else g * 2) + (0 if h is None else h * 3)
                if (g is not None or h is not None)
                else None
            )

    def f(a):
        return G.apply(a)

    f = c(f)
    log = []
    for w in (0, 1, 2, 0):
        a = torch.ones(2, requires_grad=True)
        y, z = f(a)
        (y.sum() if w == 0 else z.sum() if w == 1 else y.sum() + z.sum()).backward()
        log.append(L(a.grad))
    return log


@prog
def cf_dirty(c):
    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.mark_dirty(a)
            a.mul_(2)
            return a

        @staticmethod
        def backward(ctx, g):
            return g * 2

    def f(x):
        y = x + 1
        z = G.apply(y)
        return y is z, y._version, (z * y).sum(), y

    f = c(f)
    log = []
    for n in (0, 1, 2):
        x = torch.ones(n, requires_grad=True)
        s, v, l, y = f(x)
        l.backward()
        log.append((s, v, L(y), L(x.grad)))
    return log


@prog
def cf_state_on_ctx(c):
    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, d):
            ctx.d = d
            return a * d["k"]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.d["k"], None

    def f(x, d):
        return G.apply(x, d).sum()

    f = c(f)
    log = []
    for k in (1, 2, 3):
        d = {"k": k}
        x = torch.ones(2, requires_grad=True)
        l = f(x, d)
        d["k"] = 10 * k
        l.backward()
        log.append(L(x.grad))
    return log


@prog
def cf_nondiff(c):
    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            i = (a > 0).float()
            ctx.mark_non_differentiable(i)
            return a * 2, i

        @staticmethod
        def backward(ctx, g, h):
            return g * 2

    def f(x):
        y, i = G.apply(x)
        return y, i, (y * i).sum()

    f = c(f)
    log = []
    for n in (1, 3):
        x = torch.linspace(-1, 1, n).requires_grad_()
        y, i, l = f(x)
        l.backward()
        log.append((i.requires_grad, y.requires_grad, L(x.grad)))
    return log


@prog
def cf_double(c):
    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a**3

        @staticmethod
        def backward(ctx, g):
            (a,) = ctx.saved_tensors
            return 3 * a**2 * g

    def f(x):
        return G.apply(x).sum()

    f = c(f)
    log = []
    for n in (1, 2):
        x = torch.full((n,), 2.0).requires_grad_()
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        g.sum().backward()
        log.append(L(x.grad))
    return log


@prog
def cf_returns_none_leaf(c):
    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a + b

        @staticmethod
        def backward(ctx, g):
            return g, None

    def f(a, b):
        return G.apply(a, b * 2).sum()

    f = c(f)
    log = []
    for n in (0, 1):
        a = torch.ones(n, requires_grad=True)
        b = torch.ones(n, requires_grad=True)
        f(a, b).backward()
        log.append((L(a.grad), L(b.grad)))
    return log


@prog
def views_inplace(c):
    def f(x):
        y = x * 2
        a = y[0]
        b = y.t()
        a.mul_(3)
        b[1].add_(1)
        return y, a, b, (y * y).sum()

    f = c(f)
    log = []
    for n in (2, 3):
        x = torch.ones(n, 2, requires_grad=True)
        y, a, b, l = f(x)
        l.backward()
        log.append((L(y), L(a), L(b), L(x.grad), a._version, y._version))
    return log


@prog
def view_of_input_written(c):
    def f(x):
        v = x[1:]
        v.zero_()
        return x.sum(), v, x._version

    f = c(f)
    log = []
    for n in (1, 2, 3, 1):
        x = torch.ones(n)
        s, v, ve = f(x)
        log.append((L(s), L(v), ve, L(x), x._version, v._base is x))
    return log


@prog
def input_alias(c):
    def f(x, y):
        x.add_(1)
        return y * 2, x * 3

    f = c(f)
    log = []
    for k in range(4):
        x = torch.ones(3)
        y = x if k == 1 else x[1:] if k == 2 else x.view(3) if k == 3 else torch.ones(3)
        log.append((L(f(x, y)), L(x), L(y)))
    return log


@prog
def leaf_inplace_raises(c):
    def f(x):
        x.add_(1)
        return x

    f = c(f)
    log = []
    for rg in (False, True, False):
        x = torch.ones(2).requires_grad_(rg)
        try:
            log.append(L(f(x)))
        except RuntimeError as e:
            log.append(str(e)[:40])
    return log


@prog
def expand_write(c):
    def f(x):
        y = x.expand(2, 2)

    def f(x):
        y = x.expand(2, *x.shape)
        y.add_(1)
        return y

    f = c(f)
    log = []
    for n in (1, 2, 0):
        try:
            log.append(L(f(torch.ones(n))))
        except RuntimeError as e:
            log.append(str(e)[:40])
    return log


@prog
def thread_local(c):
    tl = threading.local()
    tl.k = 1

    def f(x):
        return x * getattr(tl, "k", 100)

    f = c(f)
    log = [L(f(torch.ones(1)))]

    def w(k):
        def r():
            if k:
                tl.k = k
            log.append(L(f(torch.ones(1))))

        t = threading.Thread(target=r)
        t.start()
        t.join()

    w(5)
    w(0)
    w(7)
    tl.k = 2
    log.append(L(f(torch.ones(1))))
    del tl.k
    log.append(L(f(torch.ones(1))))
    return log


@prog
def thread_local_sub(c):
    class TL(threading.local):
        k = 3

        def get(self):
            return self.k

    tl = TL()

    def f(x):
        tl.k = tl.get() + 1
        return x * tl.k

    f = c(f)
    log = [L(f(torch.ones(1))) for _ in range(3)]
    t = threading.Thread(target=lambda: log.append(L(f(torch.ones(1)))))
    t.start()
    t.join()
    TL.k = 50
    t = threading.Thread(target=lambda: log.append(L(f(torch.ones(1)))))
    t.start()
    t.join()
    log.append(tl.k)
    return log


@prog
def ctxvar(c):
    v = contextvars.ContextVar("v", default=1)

    def f(x):
        return x * v.get()

    f = c(f)
    log = [L(f(torch.ones(1)))]
    t = v.set(4)
    log.append(L(f(torch.ones(1))))
    v.reset(t)
    log.append(L(f(torch.ones(1))))
    ctx = contextvars.copy_context()
    ctx.run(v.set, 9)
    log.append(ctx.run(lambda: L(f(torch.ones(1)))))
    return log


@prog
def class_attr_mro(c):
    class A:
        k = 1

    class B(A):
        pass

    class D(B):
        pass

    o = D()

    def f(x):
        return x * o.k

    f = c(f)
    log = [L(f(torch.ones(1)))]
    for act in (
        lambda: setattr(A, "k", 2),
        lambda: setattr(B, "k", 3),
        lambda: setattr(o, "k", 4),
        lambda: delattr(o, "k"),
        lambda: delattr(B, "k"),
        lambda: setattr(B, "k", property(lambda s: 9)),
        lambda: setattr(D, "__bases__", (A,)),
        lambda: setattr(D, "__getattribute__", lambda s, n: 77),
    ):
        act()
        log.append(L(f(torch.ones(1))))
    return log


@prog
def class_reassigned(c):
    class A:
        def m(self):
            return 1

    class B:
        def m(self):
            return 2

    o = A()

    def f(x):
        return x * o.m()

    f = c(f)
    log = [L(f(torch.ones(1)))]
    o.__class__ = B
    log.append(L(f(torch.ones(1))))
    B.m = lambda s: 5
    log.append(L(f(torch.ones(1))))
    o.m = lambda: 8
    log.append(L(f(torch.ones(1))))
    return log


@prog
def class_store_descr(c):
    class Desc:
        def __init__(s):
            s.v = 1

        def __get__(s, o, t=None):
            return s.v

        def __set__(s, o, v):
            s.v = v * 2

    class A:
        d = Desc()

    a = A()

    def f(x):
        a.d = a.d + 1
        return x * a.d

    f = c(f)
    return [L(f(torch.ones(1))) for _ in range(4)]


@prog
def class_counter(c):
    class A:
        n = 0

        @classmethod
        def inc(cls):
            cls.n += 1
            return cls.n

    class B(A):
        pass

    def f(x, k):
        (A if k % 2 else B).inc()
        return x * A.n + B.n

    f = c(f)
    log = [L(f(torch.ones(1), k)) for k in range(6)]
    return log, A.n, B.n, "n" in vars(B)


@prog
def metaclass_attr(c):
    class M(type):
        k = 1

        @property
        def p(cls):
            return cls.k * 10

    class A(metaclass=M):
        pass

    def f(x):
        return x * A.p + A.k

    f = c(f)
    log = [L(f(torch.ones(1)))]
    M.k = 2
    log.append(L(f(torch.ones(1))))
    A.k = 5
    log.append(L(f(torch.ones(1))))
    M.p = property(lambda c: 3)
    log.append(L(f(torch.ones(1))))
    return log


@prog
def slots_abs(c):
    class A:
        __slots__ = ("a", "b")

    o = A()

    def f(x):
        return x * getattr(o, "a", 7) + hasattr(o, "b")

    f = c(f)
    log = [L(f(torch.ones(1)))]
    o.a = 1
    log.append(L(f(torch.ones(1))))
    o.b = None
    log.append(L(f(torch.ones(1))))
    del o.a
    log.append(L(f(torch.ones(1))))
    return log


@prog
def nn_hooks(c):
    m = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    torch.manual_seed(0)
    [nn.init.constant_(p, 0.5) for p in m.parameters()]
    m = c(m)
    log = []
    h = m[0].register_forward_hook(lambda m, i, o: (log.append("fwd"), o * 2)[1])
    hb = m[0].register_full_backward_hook(lambda m, gi, go: log.append((L(gi), L(go))))
    for n in (0, 1, 2):
        x = torch.ones(n, 2, requires_grad=True)
        m(x).sum().backward()
        log.append(L(x.grad))
    h.remove()
    x = torch.ones(1, 2, requires_grad=True)
    m(x).sum().backward()
    log.append(L(x.grad))
    hb.remove()
    hp = m[1].register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    log.append(L(m(x)))
    hp.remove()
    log.append(L(m(x)))
    return log


@prog
def nn_full_pre(c):
    m = nn.Linear(2, 2)
    [nn.init.constant_(p, 0.5) for p in m.parameters()]
    m = c(m)
    log = []
    h = m.register_full_backward_pre_hook(
        lambda m, go: (log.append(L(go)), (go[0] * 3,))[1]
    )
    for n in (1, 2):
        x = torch.ones(n, 2, requires_grad=True)
        m(x).sum().backward()
        log.append(L(x.grad))
    h.remove()
    x = torch.ones(1, 2, requires_grad=True)
    m(x).sum().backward()
    log.append(L(x.grad))
    return log


@prog
def param_replaced(c):
    m = nn.Linear(2, 1, bias=False)
    nn.init.constant_(m.weight, 1.0)

    def f(x):
        return m(x).sum()

    f = c(f)
    log = []
    for k in range(4):
        if k == 1:
            m.weight = nn.Parameter(torch.full((1, 2), 2.0))
        if k == 2:
            m.weight.requires_grad_(False)
        if k == 3:
            m.weight.data = torch.full((3, 2), 4.0)
            m.weight.requires_grad_(True)
        x = torch.ones(1, 2, requires_grad=True)
        l = f(x)
        l.backward()
        log.append(
            (
                L(l),
                L(x.grad),
                L(m.weight.grad)
                if m.weight.grad is not None and m.weight.grad.shape == m.weight.shape
                else None,
            )
        )
        m.weight.grad = None
    return log


@prog
def retain_grad_views(c):
    def f(x):
        y = x * 2
        v = y.view(-1)
        y.retain_grad()
        return y, v, (v * v).sum()

    f = c(f)
    log = []
    for n in (1, 2):
        x = torch.ones(n, 2, requires_grad=True)
        y, v, l = f(x)
        v.retain_grad()
        l.backward()
        log.append((L(y.grad), L(v.grad), L(x.grad)))
    return log


@prog
def grad_accum_alias(c):
    def f(x):
        return (x * 3).sum()

    f = c(f)
    x = torch.ones(2, requires_grad=True)
    log = []
    for k in range(3):
        g = x.grad
        f(x).backward()
        log.append((L(x.grad), g is x.grad))
    x.grad = None
    f(x).backward()
    log.append(L(x.grad))
    x.grad.zero_()
    f(x).backward()
    log.append(L(x.grad))
    return log


@prog
def grad_written_inside(c):
    def f(x, w):
        l = (x * w).sum()
        l.backward()
        w.data.sub_(w.grad)
        w.grad = None
        return l

    f = c(f)
    w = torch.ones(2, requires_grad=True)
    return [(L(f(torch.full((2,), float(k)), w)), L(w)) for k in range(4)]


@prog
def no_grad_toggle(c):
    def f(x):
        with torch.no_grad():
            y = x * 2
        z = x * 3
        with torch.set_grad_enabled(flag[0]):
            u = x * 4
        return y, z, u

    f = c(f)
    log = []
    flag = [True]
    for k in (True, False, True):
        flag[0] = k
        r = f(torch.ones(1, requires_grad=True))
        log.append([t.requires_grad for t in r])
    return log


@prog
def inference(c):
    def f(x):
        y = x * 2
        y.add_(1)
        return y, y.is_inference(), x.is_inference()

    f = c(f)
    log = []
    for k in range(4):
        if k % 2:
            with torch.inference_mode():
                r = f(torch.ones(2))
        else:
            r = f(torch.ones(2))
        log.append((L(r[0]), r[1:], r[0].is_inference()))
    return log


class Wr(torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Wr.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


@prog
def tf_subclass(c):
    Wr.calls = 0

    def f(x):
        return (x * 2 + 1).sum()

    f = c(f)
    log = []
    for n in (0, 1, 2):
        x = torch.ones(n).as_subclass(Wr)
        r = f(x)
        log.append((type(r).__name__, float(r), Wr.calls))
    return log


@prog
def tf_subclass_changes(c):
    class W(torch.Tensor):
        k = 1

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            r = super().__torch_function__(func, types, args, kwargs or {})
            return r * cls.k if func is torch.Tensor.add else r

    def f(x):
        return torch.Tensor.add(x, 1)

    f = c(f)
    log = []
    for k in (1, 2, 3, 1):
        W.k = k
        with torch._C.DisableTorchFunctionSubclass():
            x = torch.ones(1).as_subclass(W)
        try:
            log.append(float(f(x)))
        except RecursionError:
            log.append("rec")
    return log


@prog
def dispatch_wrapper(c):
    from torch.testing._internal.two_tensor import TwoTensor

    def f(x):
        y = x * 2
        y[0] = 5
        return y.t().contiguous()

    f = c(f)
    log = []
    for n in (1, 2):
        x = TwoTensor(torch.ones(n, 2), torch.zeros(n, 2))
        r = f(x)
        log.append((L(r.a), L(r.b), L(x.a)))
    return log


@prog
def wrapper_grad(c):
    from torch.testing._internal.two_tensor import TwoTensor

    def f(x):
        return (x.sin() * x).sum()

    f = c(f)
    log = []
    for n in (1, 2, 0):
        x = TwoTensor(torch.ones(n, 2), torch.zeros(n, 2)).requires_grad_()
        f(x).backward()
        log.append((type(x.grad).__name__, L(x.grad.a), L(x.grad.b)))
    return log


@prog
def tensor_attr(c):
    def f(x):
        x.k = getattr(x, "k", 0) + 1
        y = x * x.k
        y.tag = "t"
        return y

    f = c(f)
    log = []
    x = torch.ones(1)
    for k in range(4):
        y = f(x)
        log.append((L(y), x.k, y.tag))
        if k == 1:
            del x.k
    return log


@prog
def param_subclass_attr(c):
    class Pm(nn.Parameter):
        scale = 2

    p = Pm(torch.ones(2))

    def f(x):
        return x * p * p.scale

    f = c(f)
    log = [L(f(torch.ones(2)))]
    Pm.scale = 3
    log.append(L(f(torch.ones(2))))
    p.scale = 4
    log.append(L(f(torch.ones(2))))
    return log


@prog
def weak(c):
    class O:
        pass

    o = O()
    o.v = 2
    r = weakref.ref(o)
    holder = [o]

    def f(x):
        q = r()
        return x * (q.v if q is not None else -1)

    f = c(f)
    log = [L(f(torch.ones(1)))]
    o.v = 3
    log.append(L(f(torch.ones(1))))
    holder.clear()
    del o
    gc.collect()
    log.append(L(f(torch.ones(1))))
    return log


@prog
def defaults_mut(c):
    def g(x, acc=[]):
        acc.append(1)
        return x * len(acc)

    def f(x):
        return g(x)

    f = c(f)
    log = [L(f(torch.ones(1))) for _ in range(3)]
    g.__defaults__ = ([1] * 5,)
    log.append(L(f(torch.ones(1))))
    return log


@prog
def nonlocal_cells(c):
    n = 0

    def inc():
        nonlocal n
        n += 1
        return n

    def f(x):
        inc()
        return x * inc()

    f = c(f)
    log = [L(f(torch.ones(1))) for _ in range(3)]
    n = 100
    log.append(L(f(torch.ones(1))))
    return log, n


@prog
def finalizer_counts(c):
    log = []

    class D:
        def __init__(s, k):
            s.k = k

        def __del__(s):
            log.append(s.k)

    box = {"d": None}

    def f(x, k):
        box["d"] = D(k)
        return x * 2

    f = c(f)
    for k in range(4):
        f(torch.ones(1), k)
        log.append("e")
    box.clear()
    return log


@prog
def weak_callback(c):
    log = []

    class D:
        pass

    class K:
        d = None

    def f(x, d):
        K.d = d
        log.append("in")
        return x * 2

    f = c(f)
    for k in range(4):
        d = D()
        weakref.finalize(d, log.append, k)
        f(torch.ones(1), d)
        del d
        log.append("e")
    K.d = None
    return log


@prog
def generator_state(c):
    def gen():
        k = 0
        while True:
            k += 1
            yield k

    it = gen()

    def f(x):
        return x * next(it)

    f = c(f)
    return [L(f(torch.ones(1))) for _ in range(4)]


@prog
def is_grads_batched_plain(c):
    def f(x):
        y = x.sin()
        return y, (y * x)

    f = c(f)
    log = []
    for n in (1, 2):
        x = torch.ones(n, requires_grad=True)
        y, z = f(x)
        y.register_hook(lambda g: g * 2)
        log.append(
            L(torch.autograd.grad(z, [x, y], torch.eye(n), is_grads_batched=True))
        )
    return log


@prog
def hess(c):
    def f(x):
        return (x**3).sum()

    f = c(f)
    return [
        L(torch.autograd.functional.hessian(f, torch.ones(n), vectorize=v))
        for n in (1, 2)
        for v in (False, True)
    ]


@prog
def functorch(c):
    from torch.func import vmap, grad, jacrev, jacfwd

    def f(x):
        return (
            vmap(grad(lambda t: (t.sin() * t).sum()))(x),
            jacrev(lambda t: t.exp())(x[0] if x.shape[0] else x.sum(0)),
            jacfwd(lambda t: t**2)(x.flatten()),
        )

    f = c(f)
    return [L(f(torch.ones(n, 2))) for n in (1, 2, 3)]


@prog
def detach_share(c):
    def f(x):
        y = x * 2
        d = y.detach()
        d.add_(1)
        return y, d, (y * 3).sum()

    f = c(f)
    log = []
    for n in (1, 2):
        x = torch.ones(n, requires_grad=True)
        y, d, l = f(x)
        l.backward()
        log.append((L(y), L(d), L(x.grad), d._version, y._version))
    return log


@prog
def saved_modified(c):
    def f(x):
        y = x.exp()
        z = y * 2
        y.add_(1)
        return z.sum()

    f = c(f)
    log = []
    for n in (1, 2, 0):
        x = torch.ones(n, requires_grad=True)
        try:
            f(x).backward()
            log.append(L(x.grad))
        except RuntimeError as e:
            log.append(str(e)[:50])
    return log


@prog
def multi_output_view(c):
    def f(x):
        a, b = (x * 2).split(1) if x.shape[0] == 2 else (x * 2).chunk(2)
        return a * b

    f = c(f)
    log = []
    for n in (2, 4):
        x = torch.ones(n, requires_grad=True)
        f(x).sum().backward()
        log.append(L(x.grad))
    return log


@prog
def unbind_write(c):
    def f(x):
        a = (x * 2).unbind()[0]
        a.add_(1)
        return a

    f = c(f)
    log = []
    for rg in (True, False):
        try:
            log.append(L(f(torch.ones(2).requires_grad_(rg))))
        except RuntimeError as e:
            log.append(str(e)[:40])
    return log


@prog
def set_data(c):
    def f(x, y):
        x.data = y
        return x * 2

    f = c(f)
    log = []
    for n in (0, 1, 3):
        x = torch.ones(2, requires_grad=True)
        y = torch.full((n,), 3.0)
        r = f(x, y)
        log.append((L(r), tuple(x.shape), x.data_ptr() == y.data_ptr() or n == 0))
        r.sum().backward()
        log.append(L(x.grad))
    return log


@prog
def enum_abc(c):
    import abc, enum

    class A(abc.ABC):
        pass

    class B:
        pass

    b = B()

    def f(x):
        return x * (2 if isinstance(b, A) else 1)

    f = c(f)
    log = [L(f(torch.ones(1)))]
    A.register(B)
    log.append(L(f(torch.ones(1))))
    return log


@prog
def dict_subclass(c):
    class Dd(dict):
        def __missing__(s, k):
            s[k] = len(s) + 1
            return s[k]

    d = Dd()

    def f(x, k):
        return x * d[k]

    f = c(f)
    log = [L(f(torch.ones(1), k)) for k in "abcab"]
    Dd.__missing__ = lambda s, k: 50
    log.append(L(f(torch.ones(1), "z")))
    return log, dict(d)


@prog
def exc_state(c):
    def f(x, d):
        try:
            return x * d["k"]
        except KeyError as e:
            return x * len(e.args) + (-1 if e.__context__ is None else -5)

    f = c(f)
    d = {}
    log = [L(f(torch.ones(1), d))]
    d["k"] = 4
    log.append(L(f(torch.ones(1), d)))
    del d["k"]
    try:
        raise ValueError
    except ValueError:
        log.append(L(f(torch.ones(1), d)))
    return log


@prog
def hook_on_input_changes(c):
    def f(x):
        return (x * x).sum()

    f = c(f)
    log = []
    for k in range(4):
        x = torch.full((k,), 2.0).requires_grad_()
        if k % 2:
            x.register_hook(lambda g: g * 10)
        f(x).backward()
        log.append(L(x.grad))
    return log


@prog
def hook_added_between(c):
    def f(x):
        a = x * 2
        b = a * 3
        return a, b

    f = c(f)
    log = []
    for k in range(4):
        x = torch.ones(2, requires_grad=True)
        a, b = f(x)
        b.sum().backward(retain_graph=True)
        log.append(L(x.grad))
        a.register_hook(lambda g: g * k)
        b.sum().backward(retain_graph=True)
        log.append(L(x.grad))
        a.retain_grad()
        (a.sum() + b.sum()).backward()
        log.append((L(x.grad), L(a.grad)))
    return log


@prog
def hook_inside_compiled(c):
    seen = []

    def f(x, k):
        y = x * 2
        y.register_hook(lambda g: g * k)
        return (y * 3).sum()

    f = c(f)
    log = []
    for k in (1, 2, 3):
        x = torch.ones(2, requires_grad=True)
        f(x, k).backward()
        log.append(L(x.grad))
    return log


@prog
def hook_handle_remove_inside(c):
    def f(x):
        y = x * 2
        h = y.register_hook(lambda g: g * 5)
        z = y * 3
        h.remove()
        return z.sum()

    f = c(f)
    log = []
    for k in (1, 2):
        x = torch.ones(k, requires_grad=True)
        f(x).backward()
        log.append(L(x.grad))
    return log


@prog
def cf_global_flag(c):
    flag = {"on": True}

    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2 if flag["on"] else x * 3

        @staticmethod
        def backward(ctx, g):
            return g * 2 if flag["on"] else g * 3

    def f(x):
        return G.apply(x).sum()

    f = c(f)
    log = []
    for a, b in ((True, True), (True, False), (False, False), (False, True)):
        flag["on"] = a
        x = torch.ones(1, requires_grad=True)
        l = f(x)
        flag["on"] = b
        l.backward()
        log.append((L(l), L(x.grad)))
    return log


@prog
def cf_setup_context(c):
    class G(torch.autograd.Function):
        @staticmethod
        def forward(x, k):
            return x * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.k = inputs[1]
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx, g):
            (o,) = ctx.saved_tensors
            return g * ctx.k + o, None

    def f(x, k):
        return G.apply(x, k).sum()

    f = c(f)
    log = []
    for n, k in ((0, 1), (1, 2), (2, 3), (1, 3)):
        x = torch.ones(n, requires_grad=True)
        f(x, k).backward()
        log.append(L(x.grad))
    return log


@prog
def cf_kw_and_none(c):
    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, b):
            ctx.has = b is not None
            ctx.save_for_backward(x, w)
            y = x * w
            return y if b is None else y + b

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g * w, g * x, (g if ctx.has else None)

    def f(x, w, b):
        return G.apply(x, w, b).sum()

    f = c(f)
    log = []
    for k in range(4):
        x = torch.ones(2, requires_grad=True)
        w = torch.full((2,), 3.0).requires_grad_(k != 2)
        b = None if k % 2 else torch.ones(2, requires_grad=True)
        f(x, w, b).backward()
        log.append((L(x.grad), L(w.grad), None if b is None else L(b.grad)))
    return log


@prog
def cf_saved_modified(c):
    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    def f(x):
        y = x * 1
        z = G.apply(y)
        return y, z.sum()

    f = c(f)
    log = []
    for k in range(3):
        x = torch.ones(2, requires_grad=True)
        y, l = f(x)
        if k == 1:
            y.detach().add_(1)
        if k == 2:
            with torch.no_grad():
                y.mul_(2)
        try:
            l.backward()
            log.append(L(x.grad))
        except RuntimeError as e:
            log.append(str(e)[:40])
    return log


@prog
def view_chain(c):
    def f(x):
        y = x * 1
        a = y.view(-1)
        b = a[::2]
        d = b.unsqueeze(0)
        d.mul_(2)
        return y, a, b, d, (y * y).sum()

    f = c(f)
    log = []
    for s in ((1, 2), (2, 2), (3, 2), (0, 2)):
        x = torch.ones(s, requires_grad=True)
        y, a, b, d, l = f(x)
        l.backward()
        log.append(
            (
                L(y),
                L(d),
                L(x.grad),
                y._version,
                d._version,
                [t._base is y for t in (a, b, d)],
            )
        )
    return log


@prog
def write_through_two(c):
    def f(x, k):
        y = x.clone()
        y[k:].add_(1)
        y[:k].mul_(3)
        y.t().sub_(1)
        return y

    f = c(f)
    return [L(f(torch.ones(3, 3), k)) for k in (0, 1, 2, 3, 5, -1)]


@prog
def setitem_mask(c):
    def f(x, m, v):
        y = x * 1
        y[m] = v
        return y, (y * x).sum()

    f = c(f)
    log = []
    for n in (0, 1, 3):
        x = torch.linspace(-1, 1, n).requires_grad_()
        y, l = f(x, x.detach() > 0, 5.0)
        l.backward()
        log.append((L(y), L(x.grad)))
    return log


@prog
def resize_view_grad(c):
    def f(x):
        v = x.unfold(0, 2, 1)
        return (v * v).sum(), v

    f = c(f)
    log = []
    for n in (2, 3, 5):
        x = torch.arange(float(n)).requires_grad_()
        l, v = f(x)
        l.backward()
        log.append((L(v), L(x.grad)))
    return log


@prog
def inplace_on_result_then_backward(c):
    def f(x):
        y = x * 2
        return y, y.exp()

    f = c(f)
    log = []
    for k in range(4):
        x = torch.ones(2, requires_grad=True)
        y, z = f(x)
        if k == 1:
            y.add_(1)
        if k == 2:
            z.add_(1)
        if k == 3:
            z.detach_()
        try:
            (z.sum() + y.sum()).backward()
            log.append(L(x.grad))
        except RuntimeError as e:
            log.append(str(e)[:40])
    return log


@prog
def as_strided(c):
    def f(x):
        v = x.as_strided((2, 2), (1, 1))
        return v * 2, v.sum()

    f = c(f)
    log = []
    for n in (3, 4):
        x = torch.arange(float(n)).requires_grad_()
        y, l = f(x)
        l.backward()
        log.append((L(y), L(x.grad)))
    return log


@prog
def requires_grad_flip(c):
    def f(x):
        y = x.detach()
        y.requires_grad_()
        z = (y * y).sum()
        (g,) = torch.autograd.grad(z, y)
        return g, y.requires_grad, y.is_leaf

    f = c(f)
    return [(L(r[0]), r[1:]) for n in (0, 1, 2) for r in [f(torch.ones(n))]]


@prog
def out_kw(c):
    def f(x, o):
        torch.mul(x, 2, out=o)
        torch.add(o, x, out=o)
        return o

    f = c(f)
    log = []
    for n in (0, 1, 2):
        o = torch.empty(n)
        r = f(torch.ones(n), o)
        log.append((L(r), r is o, o._version))
    return log


@prog
def wrapper_meta(c):
    from torch.testing._internal.two_tensor import TwoTensor

    def f(x):
        return x.shape[0], x.dtype, (x * x).sum(0), x.t(), type(x).__name__

    f = c(f)
    log = []
    for n in (0, 1, 2):
        x = TwoTensor(torch.ones(n, 2), torch.zeros(n, 2))
        r = f(x)
        log.append((r[0], str(r[1]), L(r[2].a), L(r[2].b), tuple(r[3].shape), r[4]))
    return log


class Log(torch.Tensor):
    mode = "plain"

    @staticmethod
    def __new__(cls, e):
        r = torch.Tensor._make_wrapper_subclass(
            cls,
            e.shape,
            dtype=e.dtype,
            strides=e.stride(),
            requires_grad=e.requires_grad,
        )
        r.e = e
        return r

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        un = lambda t: t.e if isinstance(t, Log) else t
        args = torch.utils._pytree.tree_map(un, args)
        kwargs = torch.utils._pytree.tree_map(un, kwargs or {})
        r = func(*args, **kwargs)
        if (
            cls.mode == "double"
            and isinstance(r, torch.Tensor)
            and func is torch.ops.aten.mul.Tensor
        ):
            r = r * 2
        return torch.utils._pytree.tree_map(
            lambda t: Log(t) if isinstance(t, torch.Tensor) else t, r
        )


@prog
def dispatch_mode_changes(c):
    def f(x):
        return (x * x).add(1)

    f = c(f)
    log = []
    for m in ("plain", "double", "plain", "double"):
        Log.mode = m
        r = f(Log(torch.ones(2)))
        log.append((type(r).__name__, L(r.e)))
    Log.mode = "plain"
    return log


@prog
def dispatch_attr(c):
    def f(x):
        return x * x.scale

    f = c(f)
    log = []
    for s in (1, 2, 3.5, torch.ones(1) * 4):
        x = Log(torch.ones(1))
        x.scale = s
        log.append(L(f(x).e))
    return log


@prog
def wrapper_inplace(c):
    def f(x):
        x.mul_(2)
        y = x + 0
        return y

    f = c(f)
    log = []
    for n in (0, 1, 2):
        x = Log(torch.ones(n))
        r = f(x)
        log.append((L(r.e), L(x.e)))
    return log


@prog
def wrapper_class_replaced(c):
    class A(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {})).as_subclass(torch.Tensor) * K[0]

    K = [2]

    def f(x):
        return x + 1

    f = c(f)
    log = []
    for k in (2, 3, 5):
        K[0] = k
        log.append(L(f(torch.ones(1).as_subclass(A))))
    A.__torch_function__ = classmethod(
        lambda cls, func, types, args=(), kwargs=None: torch.zeros(1)
    )
    log.append(L(f(torch.ones(1).as_subclass(A))))
    return log


@prog
def class_attr_tensor(c):
    class C:
        w = torch.ones(2)

    def f(x):
        return x * C.w

    f = c(f)
    log = [L(f(torch.ones(2)))]
    C.w = torch.full((2,), 3.0)
    log.append(L(f(torch.ones(2))))
    C.w.add_(1)
    log.append(L(f(torch.ones(2))))
    C.w = torch.ones(2, requires_grad=True)
    log.append(f(torch.ones(2)).requires_grad)
    C.w = 2
    log.append(L(f(torch.ones(2))))
    return log


@prog
def class_store_tensor(c):
    class C:
        last = None

    def f(x):
        C.last = x * 2
        return C.last + 1

    f = c(f)
    log = []
    for n in (0, 1, 2):
        r = f(torch.ones(n))
        log.append((L(r), L(C.last)))
    return log


@prog
def class_list(c):
    class C:
        items = []

    def f(x):
        C.items.append(x.shape[0])
        return x * len(C.items)

    f = c(f)
    log = [L(f(torch.ones(n))) for n in (1, 2, 1)]
    C.items = [1] * 9
    log.append(L(f(torch.ones(1))))
    return log, C.items


@prog
def setattr_dyn(c):
    class C:
        a = 1
        b = 2

    def f(x, n):
        setattr(C, n, getattr(C, n) + 1)
        return x * C.a * C.b

    f = c(f)
    return [L(f(torch.ones(1), n)) for n in "abab"], C.a, C.b


@prog
def delattr_class(c):
    class A:
        k = 1

    class B(A):
        k = 2

    def f(x):
        if "k" in vars(B):
            del B.k
        return x * B.k

    f = c(f)
    log = [L(f(torch.ones(1)))]
    B.k = 7
    log.append(L(f(torch.ones(1))))
    log.append(L(f(torch.ones(1))))
    return log


@prog
def init_subclass(c):
    reg = []

    class A:
        def __init_subclass__(cls, **k):
            reg.append(cls.__name__)

    def f(x):
        class B(A):
            pass

        return x * len(reg)

    f = c(f)
    return [L(f(torch.ones(1))) for _ in range(3)], reg


@prog
def instancecheck(c):
    class M(type):
        yes = True

        def __instancecheck__(cls, o):
            return M.yes

    class A(metaclass=M):
        pass

    def f(x):
        return x * (2 if isinstance(3, A) else 1)

    f = c(f)
    log = []
    for y in (True, False, True):
        M.yes = y
        log.append(L(f(torch.ones(1))))
    del M.__instancecheck__
    log.append(L(f(torch.ones(1))))
    return log


@prog
def dunder_call(c):
    class A:
        def __call__(s, x):
            return x * 2

        def __len__(s):
            return 0

    a = A()

    def f(x):
        return a(x) + (1 if a else 5)

    f = c(f)
    log = [L(f(torch.ones(1)))]
    A.__call__ = lambda s, x: x * 9
    log.append(L(f(torch.ones(1))))
    A.__len__ = lambda s: 3
    log.append(L(f(torch.ones(1))))
    A.__bool__ = lambda s: False
    log.append(L(f(torch.ones(1))))
    a.__call__ = lambda x: 0
    log.append(L(f(torch.ones(1))))
    return log


@prog
def cached_property(c):
    class A:
        n = 0

        @functools.cached_property
        def p(s):
            A.n += 1
            return A.n

    a = A()

    def f(x):
        return x * a.p

    f = c(f)
    log = [L(f(torch.ones(1))) for _ in range(2)]
    del a.p
    log.append(L(f(torch.ones(1))))
    a.p = 50
    log.append(L(f(torch.ones(1))))
    return log


@prog
def tl_threads_grad(c):
    tl = threading.local()

    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * tl.k

        @staticmethod
        def backward(ctx, g):
            return g * getattr(tl, "k", -1)

    def f(x):
        return G.apply(x).sum()

    f = c(f)
    log = []

    def w(k):
        tl.k = k
        x = torch.ones(1, requires_grad=True)
        f(x).backward()
        log.append(L(x.grad))

    for k in (1, 2, 3):
        t = threading.Thread(target=w, args=(k,))
        t.start()
        t.join()
    w(9)
    tl.k = 10
    x = torch.ones(1, requires_grad=True)
    l = f(x)
    tl.k = 20
    l.backward()
    log.append(L(x.grad))
    return log


@prog
def tl_dict(c):
    tl = threading.local()
    tl.d = {}

    def f(x, k):
        tl.d[k] = tl.d.get(k, 0) + 1
        return x * tl.d[k]

    f = c(f)
    log = [L(f(torch.ones(1), k)) for k in "aab"]
    tl.d = {}
    log.append(L(f(torch.ones(1), "a")))
    return log, tl.d


@prog
def grad_mode_thread(c):
    def f(x):
        return x * 2, torch.is_grad_enabled()

    f = c(f)
    log = []
    with torch.no_grad():
        log.append(f(torch.ones(1, requires_grad=True))[1])
        t = threading.Thread(
            target=lambda: log.append(f(torch.ones(1, requires_grad=True))[1])
        )
        t.start()
        t.join()
    return log


@prog
def default_dtype(c):
    def f():
        return torch.ones(2) * 1.5, torch.tensor(1.5).dtype

    f = c(f)
    log = []
    for d in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(d)
        r = f()
        log.append((str(r[0].dtype), str(r[1])))
    torch.set_default_dtype(torch.float32)
    return log


@prog
def retain_none(c):
    def f(x, y):
        a = x * 2
        b = y * 3
        return a, b, a.sum()

    f = c(f)
    log = []
    for k in range(2):
        x = torch.ones(2, requires_grad=True)
        y = torch.ones(2, requires_grad=True)
        a, b, l = f(x, y)
        b.register_hook(lambda g: log.append("b"))
        y.register_hook(lambda g: log.append("y"))
        a.retain_grad()
        b.retain_grad()
        l.backward()
        log.append((L(x.grad), L(y.grad), L(a.grad), L(b.grad)))
    return log


@prog
def inputs_arg(c):
    def f(x, w):
        h = x * w
        return h, (h * h).sum()

    f = c(f)
    log = []
    for k in range(3):
        x = torch.ones(2, requires_grad=True)
        w = torch.full((2,), 2.0).requires_grad_()
        h, l = f(x, w)
        x.register_hook(lambda g: log.append("x"))
        w.register_hook(lambda g: log.append("w"))
        l.backward(inputs=[[x], [w], [h] if h.retain_grad() is None else 0][k])
        log.append((L(x.grad), L(w.grad), L(h.grad)))
    return log


@prog
def grad_outputs(c):
    def f(x):
        return x.sin(), x.cos()

    f = c(f)
    log = []
    for n in (0, 1, 2):
        x = torch.ones(n, requires_grad=True)
        a, b = f(x)
        log.append(
            L(
                torch.autograd.grad(
                    [a, b],
                    [x],
                    [torch.ones(n) * 2, None]
                    if n == 1
                    else [torch.ones(n), torch.ones(n) * 3],
                    allow_unused=True,
                )
            )
        )
    return log


@prog
def unused_raises(c):
    def f(x, y):
        return x * 2, y * 2

    f = c(f)
    log = []
    for au in (False, True):
        x = torch.ones(1, requires_grad=True)
        y = torch.ones(1, requires_grad=True)
        a, b = f(x, y)
        try:
            log.append(L(torch.autograd.grad(a, [x, y], allow_unused=au)))
        except RuntimeError as e:
            log.append(str(e)[:40])
    return log


@prog
def twice_raises(c):
    def f(x):
        return x.exp().sum(), (x * 2).sum()

    f = c(f)
    log = []
    for k in (0, 1):
        x = torch.ones(2, requires_grad=True)
        r = f(x)
        for _ in range(2):
            try:
                r[k].backward()
                log.append(L(x.grad))
            except RuntimeError as e:
                log.append(str(e)[:30])
    return log


@prog
def checkpoint(c):
    from torch.utils.checkpoint import checkpoint

    k = [2]

    def inner(x):
        return (x * k[0]).sin()

    def f(x):
        return checkpoint(inner, x, use_reentrant=False).sum()

    f = c(f)
    log = []
    for n in (1, 2):
        k[0] = n + 1
        x = torch.ones(n, requires_grad=True)
        l = f(x)
        l.backward()
        log.append(L(x.grad))
    return log


@prog
def accum_hook_grad_fn(c):
    def f(x):
        y = x * 2
        return y

    f = c(f)
    log = []
    for n in (1, 2):
        x = torch.ones(n, requires_grad=True)
        y = f(x)
        log.append(
            (
                y.grad_fn is not None,
                len(y.grad_fn.next_functions) > 0,
                y.is_leaf,
                y.output_nr,
            )
        )
    return log


@prog
def grad_dtype(c):
    def f(x):
        return (x.double() * 2).float().half().sum()

    f = c(f)
    log = []
    for dt in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.ones(2, dtype=dt, requires_grad=True)
        f(x).backward()
        log.append((str(x.grad.dtype), L(x.grad)))
    return log


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(fresh, name):
    compiled = []

    def compile_it(f):
        compiled.append(fresh.compile(f))
        return compiled[-1]

    expected = PROGRAMS[name](lambda f: f)
    assert PROGRAMS[name](compile_it) == expected
    runs = sum(
        fresh.cache_info(c)["outcomes"].get("run", {}).get("graph", 0) for c in compiled
    )
    assert (runs > 0) != (name in LEFT)
