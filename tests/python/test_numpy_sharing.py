"""NumPy's functions on arrays of every layout: the result, its layout and flags, whose memory it is, and what is seen where the result or
the operand is written behind the call. `slow`: all arrays and all three programs; the quick suite has a few."""

import numpy as np
import pytest

ARRAYS = {
    "rows": lambda: np.arange(1.0, 25).reshape(4, 6),
    "strided": lambda: np.arange(1.0, 97).reshape(8, 12)[::2, ::2],
    "turned": lambda: np.arange(1.0, 25).reshape(4, 6)[::-1, ::-1],
    "columns": lambda: np.asfortranarray(np.arange(1.0, 25).reshape(4, 6)),
    "one column": lambda: np.arange(1.0, 5).reshape(4, 1),
    "vector": lambda: np.arange(1.0, 7),
    "turned vector": lambda: np.arange(1.0, 7)[::-1],
    "no axes": lambda: np.array(3.0),
    "integers": lambda: np.arange(1, 25).reshape(4, 6),
    "read only": lambda: np.broadcast_to(np.arange(1.0, 7), (4, 6)),
    "empty": lambda: np.zeros((0, 6)),
    "single": lambda: np.arange(1, 25, dtype=np.float32).reshape(4, 6),
    "three axes": lambda: np.arange(1.0, 25).reshape(2, 3, 4).transpose(2, 0, 1),
}
QUICK = ("rows", "strided", "turned")
CALLS = """
a.ravel() ; a.ravel('F') ; a.ravel('K') ; a.ravel('A') ; np.ravel(a) ; a.flatten() ; a.flatten('F') ; a.reshape(-1) ; a.reshape(-1,order='F')
np.reshape(a,(-1,)) ; a.T ; a.T.copy() ; a.copy() ; a.copy('F') ; np.copy(a) ; np.array(a) ; np.asarray(a,dtype=a.dtype)
np.asarray(a,dtype='f4') ; np.ascontiguousarray(a) ; np.asfortranarray(a) ; np.atleast_1d(a) ; np.atleast_2d(a) ; np.atleast_3d(a)
np.squeeze(a) ; a.squeeze() ; np.expand_dims(a,0) ; a[None] ; a[...] ; a[:] ; a[1:] ; a[::-1] ; a[...,0] ; a[:,::2] ; np.transpose(a)
np.swapaxes(a,0,-1) ; np.moveaxis(a,0,-1) ; np.rollaxis(a,-1) ; np.flip(a) ; np.flipud(a) ; np.rot90(a) ; np.roll(a,1) ; np.diagonal(a)
np.diag(a) ; np.broadcast_to(a,(2,)+a.shape) ; np.split(a,2)[0] ; np.array_split(a,2)[1] ; np.hsplit(a,2)[0] ; np.concatenate([a,a])
np.stack([a,a]) ; np.hstack([a,a]) ; np.vstack([a,a]) ; np.tile(a,2) ; np.repeat(a,2) ; a.real ; a.imag ; np.real(a) ; a.astype(a.dtype)
a.astype(a.dtype,copy=False) ; a.astype('f4') ; a.astype('f4',copy=False) ; a.view() ; a.astype('i8') ; a.view('i8') ; np.where(a>3,a,0)
np.where(True,a,a) ; np.take(a,[0,1],axis=0) ; a[[0,1]] ; a[a>2] ; np.compress([True],a,axis=0) ; np.sort(a) ; np.sort(a,axis=None)
np.argsort(a) ; np.partition(a,1) ; np.unique(a) ; np.cumsum(a) ; np.cumsum(a,axis=-1) ; np.diff(a) ; a.sum() ; a.sum(0)
a.sum(axis=-1,keepdims=True) ; np.sum(a,axis=()) ; a.mean() ; np.clip(a,2,5) ; a.clip(2) ; np.round(a) ; np.abs(a) ; +a ; -a ; np.positive(a)
a+0 ; a*1 ; a@a.T ; np.dot(a,a.T) ; np.outer(a,a) ; np.trace(a) ; np.tril(a) ; np.triu(a) ; np.pad(a,1) ; np.resize(a,(3,3)) ; np.append(a,1.)
np.insert(a,0,1.) ; np.delete(a,0) ; np.nan_to_num(a) ; np.nan_to_num(a,copy=False) ; np.require(a,requirements='C')
np.broadcast_arrays(a,a)[0] ; np.meshgrid(a.ravel(),a.ravel())[0] ; np.ix_([0],[0])[0] ; np.apply_along_axis(np.sum,0,a)
np.einsum('ij->ji',a) ; np.einsum('ii->i',a[:4,:4]) ; np.einsum('...->...',a) ; np.tensordot(a,a,0) ; np.kron(a,a) ; np.select([a>2],[a])
np.choose(np.zeros(a.shape,int),[a,a]) ; a.tolist() ; np.median(a) ; np.percentile(a,50) ; np.average(a) ; np.full_like(a,2) ; np.zeros_like(a)
np.ones_like(a,order='C') ; a.flat[0] ; a.max() ; a.argmax() ; np.amax(a,0) ; np.searchsorted(a.ravel(),3.) ; np.digitize(a,[1,2,3])
np.histogram(a,3)[0] ; np.interp(a,[0,10],[0,1]) ; np.gradient(a) ; np.convolve(a.ravel(),[1.,1.]) ; np.fft.fft(a) ; np.linalg.norm(a)
np.conj(a) ; a.conj() ; np.sign(a) ; np.floor(a) ; np.trunc(a) ; np.rint(a) ; np.square(a) ; np.fmax(a,3) ; np.maximum(a,3)
np.heaviside(a,1.) ; np.isnan(a) ; np.isclose(a,a) ; np.array_equal(a,a) ; np.all(a>0) ; np.any(a>100) ; np.count_nonzero(a) ; np.nonzero(a)[0]
np.argwhere(a>2) ; np.flatnonzero(a>2) ; a.swapaxes(0,-1) ; a.transpose() ; a.repeat(2) ; a.dot(a.T) ; a.cumprod() ; a.trace() ; a.std()
a.var() ; a.byteswap() ; a.nonzero()[0] ; a.diagonal() ; np.vander(a) ; np.cross(a[:,:3],a[:,:3]) ; np.cov(a) ; np.corrcoef(a)
np.trapezoid(a) ; np.lexsort((a,)) ; np.unwrap(a) ; np.hypot(a,a) ; np.logaddexp(a,a) ; np.divmod(a,2)[0] ; np.modf(a)[0] ; np.frexp(a)[0]
np.cbrt(a) ; np.exp2(a) ; np.sinc(a) ; np.i0(a) ; np.deg2rad(a) ; np.nanmean(a) ; np.nancumsum(a) ; np.ediff1d(a) ; np.block([a,a])
np.dstack([a,a]) ; np.column_stack([a,a]) ; np.bincount(a.ravel().astype(int)) ; np.polyval([1.,2.],a)
np.lib.stride_tricks.sliding_window_view(a,2,axis=-1) ; np.matmul(a,a.T) ; np.inner(a,a) ; np.vdot(a,a) ; np.linalg.svd(a)[1]
np.linalg.qr(a)[0] ; np.linalg.pinv(a) ; np.extract(a>2,a) ; np.isin(a,[1.,2.]) ; np.setdiff1d(a,[1.]) ; np.trim_zeros(a) ; np.array([a,a])
np.array([a.sum(),1.]) ; np.float32(a.sum()) ; np.take_along_axis(a,np.argsort(a,-1),-1) ; np.squeeze(a[None],0) ; np.array(a,ndmin=3)
np.array(a,order='F') ; np.asanyarray(a) ; np.may_share_memory(a,a) ; np.shares_memory(a,a.T) ; np.linspace(a.sum(),1,3) ; np.arange(a.sum()>5)
a.size ; a.nbytes ; a.strides ; a.flags.c_contiguous ; a.base is None ; a.dtype ; len(a) if a.ndim else 0 ; a.itemsize ; bool(a.any())
float(a.sum()) ; int(a.sum()) ; round(float(a.sum()),1) ; complex(a.sum()) ; abs(a) ; divmod(a,2)[1] ; a//2 ; a%2 ; a**2 ; 2**a ; a<<1 ; ~a
a>2 ; (a>2)&(a<5) ; a!=a ; np.invert(a>2) ; np.logical_not(a) ; np.bitwise_and(a.astype(int),3) ; a.copy(order='F') ; np.copy(a,'F')
np.float_power(a,2) ; np.float64(a) ; np.float32(a) ; np.int64(a) ; np.squeeze(a.imag)
"""  # fmt: skip
PROGRAMS = {
    "plain": "    r = {}\n    return r, isinstance(r, np.ndarray) and np.shares_memory(r, a)\n",
    "result written": "    a = a + 0 if a.flags.writeable else a.copy()\n    r = {}\n    if isinstance(r, np.ndarray) and r.flags.writeable:\n        r *= 2\n    return r, a\n",
    "result written or refused": "    a = a + 0\n    r = {}\n    if isinstance(r, np.ndarray):\n        r[...] = 1\n        r = r.copy()\n    return r, a\n",
    "operand written": "    r = {}\n    if a.flags.writeable:\n        a *= 2\n    return r, a\n",
}
# NumPy reads what lies behind an array that has nothing, and hands out as much as it finds there.
OUT_OF_BOUNDS = ("np.einsum('ii->i',a[:4,:4])", "empty")
# An array that NumPy makes as a view of a scalar, or of a copy, owns its memory here.
OWNS = {("np.ravel(a)", "no axes"), ("np.reshape(a,(-1,))", "no axes"), ("np.array(a,ndmin=3)", "read only")}


def facts(value):
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(facts, value)]
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    return str(value.dtype), value.shape, value.strides if value.size else None, str(value.flags)


def same(a, b):
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (np.ndarray, np.generic, float, complex)):
        return np.allclose(a, b, rtol=1e-6, equal_nan=True)
    return a == b


def outcome(f, make):
    a = make()
    try:
        return f(a)
    except Exception as error:  # compared
        return type(error).__name__


def cases():
    for call in (c.strip() for line in CALLS.strip().splitlines() for c in line.split(";")):
        for program in PROGRAMS:
            for name in ARRAYS:
                if (call, name) == OUT_OF_BOUNDS:
                    continue
                quick = name in QUICK and program == "result written" or name == "rows" and program == "result written or refused"
                yield pytest.param(call, program, name, id=f"{call}-{program}-{name}", marks=[] if quick else pytest.mark.slow)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "program", "name"), cases())
def test_layouts_flags_and_sharing(fresh, call, program, name):
    space = {"np": np}
    exec(compile("def f(a):\n" + PROGRAMS[program].format(f"({call})"), f"<{call}>", "exec"), space)
    f = space["f"]
    expected, compiled = outcome(f, ARRAYS[name]), fresh.compile(f)
    for _ in range(2):
        got = outcome(compiled, ARRAYS[name])
        assert same(got, expected)
        if (call, name) not in OWNS:
            assert facts(got) == facts(expected)


COPIES = """
a[2:80] = a[:156:2]
a[0:156:2] = a[1:79]
a[80:2:-1] = a[156:0:-2]
a[156:0:-2] = a[80:2:-1]
np.copyto(a[2:80], a[:156:2])
a[1:6] = a[0:10:2]
a[5:10] = a[4::-1]
a[2:80] = a[:78]
a[:78] = a[2:80]
a[80:2:-1] = a[78:0:-1]
a[100:150] = a[0:100:2]
a[2:80] = a[5:6]
a[2:80] = a[:156:2] * 1
a[2:80] += a[:156:2]
"""


@pytest.mark.parametrize("copy", COPIES.strip().splitlines())
@pytest.mark.parametrize("rounds", [0, 1, 40])
def test_copies_between_parts_that_meet(copy, rounds):
    """Along one axis NumPy looks at no overlap: where the strides differ, it reads what it has written."""
    import framejit

    body = "\n".join(["    " * bool(rounds) + line for line in (copy, "a[i % 7] += 1" if rounds else "a[0] += 1")])
    loop = f"    for i in range({rounds}):\n" if rounds else ""
    text = "def f(a):\n" + loop + "\n".join("    " + line for line in body.splitlines()) + "\n    return a + 1\n"
    space = {"np": np}
    exec(text, space)
    compiled = framejit.compile(space["f"])
    for start in range(4):
        mine, its = np.arange(start, 200.0 + start), np.arange(start, 200.0 + start)
        np.testing.assert_array_equal(compiled(mine), space["f"](its))
        np.testing.assert_array_equal(mine, its)


def test_a_number_of_numpy_is_reshaped_as_numpy_does():
    import framejit

    def f(a):
        x = a.sum()
        return np.reshape(x, ()), x.reshape(()), np.reshape(x, (1, 1)), np.ravel(x), x.ravel(), x.flatten(), np.array(x).reshape(())

    compiled = framejit.compile(f)
    for scale in (1, 2, 3):
        mine, its = compiled(np.arange(2000.0) * scale), f(np.arange(2000.0) * scale)
        for one, other in zip(mine, its, strict=True):
            assert type(one) is type(other) and one == other and one.shape == other.shape
            assert one.flags.owndata == other.flags.owndata and type(one.base) is type(other.base)
    assert framejit.cache_info(compiled)["captures"] >= 1  # reshape of a number is a break
