"""Errors of torch and NumPy that a function catches by itself: the class and the text that eager has, and the same result where there is none."""

import math  # noqa: F401
import operator  # noqa: F401
import statistics  # noqa: F401
import warnings

import pytest

np = pytest.importorskip("numpy")
try:
    import torch
    import torch.nn.functional as F  # noqa: F401
except ImportError:
    torch = None

TENSORS = """
x+'a'
x@y
x.view(7)
x.reshape(2,2)
x[5]
x[0,0]
x['a']
x[1.5]
x.foo
x()
len(x.sum())
list(x.sum())
[1,2][x]
[1,2][x[0].long()]
{}[x]
'a'*x
'a'+x
x<'a'
x and 1
bool(x)
int(x)
float(x)
x.item()
range(x)
range(x[0].long())
math.sqrt(x)
math.floor(x[0])
math.sqrt(-x[0]-1)
sorted(x)
sorted([x,x])
max(x)
max([x,x])
sum(x)
sum([x,'a'])
min(x,x)
round(x)
round(x[0])
abs(x)
divmod(x,2)
pow(x,2,5)
torch.add(x,1,alpha=True)
x.sub(x,alpha=True)
vars(x.shape)
vars(x.sum().item())
pow(x,2)
x**'a'
hash(x)==hash(x)
format(x,'.2f')
format(x[0],'.2f')
'%d'%x
'%s'%x[0]
str(x)
f'{x[0]:.3f}'
torch.cat([x,1])
torch.cat([])
torch.stack([x,y])
torch.stack(x)
torch.cat([x,y[0]],1)
torch.matmul(x,x[:2])
torch.mm(x,x)
x.mm(x)
x.add(1,2,3)
x.add(b=1)
torch.add(x)
x.sum(5)
x.sum('a')
x.transpose(0,3)
x.permute(1,0)
x.unsqueeze(9)
x.squeeze(9)
x.expand(2)
x.repeat()
x.split(0)
x.chunk(0)
x.narrow(0,1,9)
x.index_select(0,x)
x.gather(0,x)
x.scatter(0,x.long(),'a')
x.masked_fill(x,1)
x.masked_fill(x>0,'a')
torch.where(x,x,x)
torch.where(x>0,x,'a')
x.to('foo')
x.type('foo')
x.long().mean()
x.long().softmax(0)
x.bool().neg()
~x
x&x
x<<1
x//0
x%0
x.long()//0
x.long()%0
torch.zeros(-1)
torch.zeros('a')
torch.arange(1,0)
torch.arange(0,1,0)
torch.linspace(0,1,-1)
torch.eye(-1)
torch.full((2,),'a')
torch.ones(2,dtype='a')
torch.nn.functional.linear(x,x[:2])
torch.nn.functional.cross_entropy(x[None],torch.tensor([7]))
torch.nn.functional.cross_entropy(x[None],torch.tensor([0,1]))
torch.nn.functional.conv2d(x,x)
torch.nn.functional.conv1d(x[None,None],y[:1,None],padding=-1)
torch.nn.functional.embedding(x,y)
torch.nn.functional.embedding(torch.tensor([9]),y)
torch.nn.functional.layer_norm(x,(5,))
torch.nn.functional.dropout(x,2)
torch.nn.functional.interpolate(x,2)
torch.nn.functional.max_pool2d(x,2)
torch.nn.functional.one_hot(x)
torch.nn.functional.one_hot(torch.tensor([3]),2)
torch.nn.functional.pad(x,(1,))
torch.nn.functional.relu('a')
torch.nn.Linear(2,2)(x)
torch.einsum('ij,jk',x,x)
torch.einsum('i,i->',x)
torch.bmm(x,x)
torch.linalg.inv(torch.zeros(2,2))
torch.linalg.cholesky(-torch.eye(2))
torch.linalg.solve(torch.zeros(2,2),torch.ones(2))
torch.svd(x)
torch.dot(x,y)
torch.dot(x,x.long())
torch.cross(x,y)
torch.multinomial(-x,1)
torch.bernoulli(x*9)
torch.normal(x,-x)
torch.quantile(x,2.)
torch.topk(x,9)
x.kthvalue(9)
x.unfold(0,9,1)
x.cumsum(3)
x.flip(3)
x.roll(1,3)
x.diag(1,2)
x.tril()
x.as_strided((9,9),(1,1))
x.view(torch.int64)
x.requires_grad_().add_(1)
x.backward()
torch.autograd.grad(x.sum(),x)
x.numpy().foo
x.data.add_('a')
setattr(x,'shape',3)
setattr(x,'grad',3)
delattr(x,'foo')
next(iter(x)).foo
next(iter(x.sum()))
dict(x)
dict([x])
(lambda a,b:a)(*x)
operator.index(x)
operator.index(x[0])
operator.index(x[0].long())
torch.tensor([x,'a'])
torch.tensor('a')
torch.tensor([[1],[2,3]])
torch.as_tensor(None)
torch.Tensor(x,2)
torch.Size([x])
x.new_zeros('a')
x.resize_(2)
x.set_(y)
x.index_add(0,torch.tensor([9]),x[:1])
x.index_fill(0,torch.tensor([9]),0)
x[torch.tensor([9])]
x[torch.tensor([True])]
x[x]
x.__getitem__(9)
x.__setitem__(9,0)
operator.setitem(x.clone(),0,x)
operator.setitem(x.clone(),slice(0,2),y)
x.copy_(y)
x.add_(torch.ones(2,3))
x.long().add_(.5)
x.mul_(x.double()).dtype
x.clamp()
x.clamp('a')
x.std(5)
x.norm('a')
x.var(unbiased='a')
x.argmax(4)
x[:0].max()
x[:0].argmax()
x[:0].min(0)
x.chunk('a')
torch.vmap(lambda v:v.item())(x)
torch.func.grad(lambda v:v)(x)
torch.func.jvp(lambda v:v,(x,),(y,))
torch.utils.checkpoint.checkpoint(lambda v:v.foo,x,use_reentrant=False)
""".strip().splitlines()
ARRAYS = """
x+'a'
x@y
x.reshape(7)
x[5]
x[0,0]
x['a']
x[1.5]
x.foo
x()
len(x.sum())
len(x[0])
list(x.sum())
[1,2][x]
[1,2][x.astype(int)[0]]
{}[x]
'a'*x
'a'+x
x<'a'
x=='a'
x and 1
bool(x)
bool(x[:1])
bool(x[:0])
int(x)
int(x[:1])
float(x)
float(x[0])
complex(x[0])
x.item()
x.item(1)
x.item(9)
range(x.astype(int)[0])
range(x[0])
math.sqrt(x)
math.sqrt(x[0])
math.floor(x[0]),math.ceil(x[0]),math.trunc(x[0])
math.sqrt(-x[0]-1)
sorted(x)
max(x),min(x),sum(x)
max([x,x])
round(x)
round(x[0])
round(x[0],1)
round(x,1)
divmod(x,2)
divmod(x[0],0)
pow(x,2)
x**'a'
hash(x)
hash(x[0])==hash(.5)
format(x,'.2f')
format(x[0],'.2f')
'%d'%x[0]
'%s'%x
str(x),repr(x)
f'{x[0]:.3f} {x} {x[0]!r}'
np.concatenate([x,1])
np.concatenate([])
np.stack([x,y])
np.stack(x)
np.concatenate([x,y],1)
np.matmul(x,x[:2])
np.dot(x,y)
np.add(1)
np.add(x)
np.add(x,y[0],y)
np.add(x,x,out=x.astype(int))
np.add(x,x,foo=1)
x.sum(5)
x.sum('a')
x.sum(axis=(0,0))
x.transpose(0,3)
x.transpose(1,0)
np.expand_dims(x,9)
x.squeeze(0)
np.squeeze(y,0)
np.broadcast_to(x,(2,))
x.repeat('a')
np.split(x,2)
np.split(x,0)
np.take(x,9)
np.take_along_axis(x,x,0)
np.where(x,x)
np.where(x>0,x,'a')
x.astype('foo')
x.astype(int).mean()
~x
x&x
x<<1
x//0
x%0
x.astype(int)//0
np.zeros(-1)
np.zeros('a')
np.arange(0,1,0)
np.arange(1,'a')
np.linspace(0,1,-1)
np.eye(-1)
np.full((2,),'a')
np.ones(2,dtype='foo')
np.array([[1],[2,3]])
np.array([x,y])
np.array([x,x[0]])
np.asarray(x,dtype='foo')
np.array('a')
np.array(None)
np.linalg.inv(np.zeros((2,2)))
np.linalg.cholesky(-np.eye(2))
np.linalg.solve(np.zeros((2,2)),np.ones(2))
np.linalg.svd(x)
np.linalg.det(x)
np.linalg.norm(x,'a')
np.cross(x,y)
np.outer(x,y)
np.einsum('ij,jk',x,x)
np.einsum('i,i->',x)
np.tensordot(x,y)
np.percentile(x,200)
np.quantile(x,'a')
np.partition(x,9)
np.sort(x,3)
np.argsort(x,3)
np.cumsum(x,3)
np.diff(x,-1)
np.flip(x,3)
np.roll(x,1,3)
np.diag(y[None])
np.tril(x)
np.pad(x,(1,),'foo')
np.clip(x)
np.clip(x,'a','b')
np.histogram(x,-1)
pow(x,2,5)
vars(x)
vars(x[0])
x[0].hex()
x[0].__floor__()
x.sum().__trunc__()
x[0].fromhex('a')
np.bincount(x)
np.bincount(-x.astype(int)-1)
np.searchsorted(x,'a')
np.interp(x,x,y)
np.polyfit(x,x,-1)
np.unique(x,axis=3)
np.searchsorted(y,1)
np.meshgrid(x,indexing='a')
np.apply_along_axis(sum,3,x)
np.vectorize(lambda v:v.foo)(x)
np.random.default_rng(0).choice(x,9,replace=False)
np.add.reduce(x,3)
np.add.at(x.astype(int),[9],1)
np.maximum(x,'a')
np.sqrt('a')
np.sqrt(x,dtype=int)
np.isnan('a')
np.nonzero(x.sum())
x.view('foo')
x.view(np.int32).shape
x.resize(9)
x.fill('a')
x.setflags(write=2)
x.dtype.foo
x.shape[3]
setattr(x,'shape',(7,))
setattr(x,'foo',1)
delattr(x,'foo')
operator.setitem(x,9,0)
operator.setitem(x,slice(0,2),y)
operator.setitem(x,0,'a')
operator.setitem(x,0,x)
operator.index(x)
operator.index(x[0])
operator.index(x.astype(int)[0])
x[np.array([9])]
x[np.array([True])]
x[x]
x[x>9].max()
x[:0].max()
x[:0].argmax()
x[:0].sum(),x[:0].prod()
x[:0].mean()
x.max(initial='a')
x.argmax(4)
x.std(ddof='a')
x.any(3)
x.dot(y.T[:2])
x.choose([1])
np.choose([5],[1,2])
x.T.foo
x.flat[9]
next(iter(x.sum()))
next(iter(x)).foo
dict(x)
(lambda a,b:a)(*x)
x[0].foo
x[0]()
x[0][0]
x[0]+'a'
x[0]<'a'
x[0]=='a',x[0]==None,x[0]!=.5
x[0].is_integer(),x[0].as_integer_ratio()
np.float64('a')
np.int8(300)
np.int8(x[0]*1000)
np.float32(x)
np.int64(x[0])
np.bool_(x)
isinstance(x[0],float),isinstance(x[0],np.floating),type(x[0]).__name__
x.astype(int)[0].bit_count()
[5,6,7][x.astype(int)[0]]
'abc'[x.astype(int)[0]]
{0.5:1}[x[0]]
x[0] in {0.5,1},x[0] in [0.5],0.5 in x,9 in x
{x[0]:1},{x[0],.5}
sorted([x[0],3,x[1]],reverse=True)
statistics.mean([x[0],x[1]])
np.testing.assert_allclose(x,x+1)
np.errstate(foo=1)
np.frombuffer(b'a',dtype=float)
np.fromstring('1 2',sep=' ')
np.datetime64('foo')
np.ndarray((2,),dtype='a')
np.nditer(x).foo
np.ma.array(x).foo
np.reshape(x,(2,-1,-1))
np.ravel_multi_index(([9],),(3,))
np.unravel_index(9,(3,))
np.block([x,y])
np.vstack([x,y[0,:2]])
np.tile(x,'a')
np.kron(x,'a')
np.gradient(x[:1])
np.trapezoid(x,y)
np.convolve(x,[])
np.correlate(x[:0],x)
np.fft.fft(x,-1)
np.fft.fft(x[:0])
""".strip().splitlines()


def caught(call):
    try:
        return call()
    except Exception as e:
        return type(e).__name__, str(e).split("\n")[0][:200]


def told(call, *args):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = repr(caught(lambda: call(*args)))
    return result if "0x" not in result else "an address", [str(w.message)[:80] for w in found if "torch.jit" not in str(w.message)]


def check(fresh, expression, make):
    space = dict(globals())
    exec(f"def f(x, y):\n    x = x * 1\n    return x * 2, caught(lambda: {expression})\n", space)
    f, compiled = space["f"], fresh.compile(space["f"])
    told(f, *make(3))  # torch warns of some things once in a process
    for rows in (3, 3, 4):
        assert told(compiled, *make(rows)) == told(f, *make(rows)), rows
    assert compiled.cache_info()["captures"]


@pytest.mark.skipif(torch is None, reason="without torch")
@pytest.mark.parametrize("expression", TENSORS)
def test_what_torch_refuses(fresh, expression):
    def make(rows):
        torch.manual_seed(0)
        return torch.arange(float(rows)) + 0.5, torch.ones(2, 3)

    check(fresh, expression, make)


@pytest.mark.parametrize("expression", ARRAYS)
def test_what_numpy_refuses(fresh, expression):
    check(fresh, expression, lambda rows: (np.arange(float(rows)) + 0.5, np.ones((2, 3))))


# n is a size, a count, a dimension or an index, of any sign.
OF_TENSORS = """
torch.zeros(n)|torch.ones(n,2)|torch.full((n,),1.)|torch.randn(n)|torch.rand(2,n)|torch.randint(0,3,(n,))|torch.arange(n)
torch.eye(n)|torch.eye(2,n)|torch.linspace(0,1,n)|torch.randperm(n)|torch.tril_indices(n,2)|torch.tril_indices(2,n)
torch.hamming_window(n)|torch.zeros_like(x).new_zeros(n)|x.new_full((n,),2)|x.expand(n,3)|x.repeat(n)|x.repeat_interleave(n)
x.tile(n)|x.view(n,3)|x.reshape(n)|x.unfold(0,n,1)|x.narrow(0,0,n)|x.split(n)|x.chunk(n)|x.roll(n)|x.topk(n)|x[:n]|x[n:]|x[n]
x.select(0,n)|x.diag_embed(n)|torch.diag(x,n)|torch.tril(x[None],n)|F.pad(x,(n,0))|F.pad(x,(0,n))|F.one_hot(torch.tensor([0]),n)
F.interpolate(x[None,None],n)|F.adaptive_avg_pool1d(x[None],n)|F.avg_pool1d(x[None],n)|F.max_pool1d(x[None],n)
F.fold(torch.ones(1,4,1),(n,2),2)|torch.bincount(x.long(),minlength=n)|torch.logspace(0,1,n)|torch.vander(x,n)
torch.cartesian_prod(x,x[:n])|torch.combinations(x,n)|torch.chunk(x,n)|torch.tensor_split(x,n)|torch.broadcast_to(x,(n,3))
torch.as_strided(x,(n,),(1,))|torch.complex(torch.zeros(n),torch.zeros(n))|torch.stft(x,n)|torch.multinomial(x,n)|x.kthvalue(n)
x.unsqueeze(n)|x.flatten(n)|x.unflatten(0,(n,3))|x.sum(n)|x.softmax(n)|x.std(correction=n)|torch.logcumsumexp(x,n)
torch.stack([x]*n)|torch.cat([x]*n)|torch.nn.functional.gumbel_softmax(x,dim=n)|torch.histc(x,n)|torch.bucketize(x,x[:n])
""".strip().replace("\n", "|").split("|")
OF_ARRAYS = """
np.zeros(n)|np.ones((n,2))|np.full(n,1.)|np.arange(n)|np.eye(n)|np.eye(2,n)|np.identity(n)|np.tri(n)|np.tri(2,n)|np.linspace(0,1,n)
np.tril_indices(n)|np.triu_indices(n)|np.diag_indices(n)|np.indices((n,2))|np.hamming(n)|np.hanning(n)|np.bartlett(n)
np.blackman(n)|np.kaiser(n,1.)|np.repeat(a,n)|np.tile(a,n)|np.broadcast_to(a,(n,3))|a.reshape(n,3)|a.reshape(n)|np.resize(a,n)
np.roll(a,n)|np.split(a,n)|np.array_split(a,n)|np.pad(a,n)|np.pad(a,(0,n))|np.diag(a,n)|np.tril(a[None],n)|np.vander(a,n)
np.bincount(a.astype(int),minlength=n)|np.histogram(a,n)|np.logspace(0,1,n)|np.geomspace(1,2,n)|np.expand_dims(a,n)|a.sum(n)
np.diff(a,n)|np.partition(a,n)|np.take(a,n)|a[:n]|a[n:]|a[n]|np.delete(a,n)|np.insert(a,n,1)|np.moveaxis(a[None],n,0)
np.swapaxes(a[None],n,0)|np.stack([a]*n)|np.concatenate([a]*n)|np.unravel_index(n,(3,))|np.fft.fft(a,n)|np.fft.rfft(a,n)
np.fft.fftfreq(n)|np.convolve(a,a[:n])|np.std(a,ddof=n)|np.rot90(a[None],n)|np.ndarray(n).shape|np.zeros_like(a,shape=n)
np.meshgrid(a[:n],a)|np.polyval(a[:n],2)|np.packbits(np.ones(abs(n),bool))|np.array([a]*n)|np.trace(a[None],n)|np.cov(a[:n])
np.median(a[:n])|np.percentile(a[:n],50)|np.argpartition(a,n)
""".strip().replace("\n", "|").split("|")


def check_numbers(fresh, expression, make):
    space = dict(globals())
    exec(f"def f(x, n):\n    a = x\n    x = x * 1; a = a * 1\n    return {expression}\n", space)
    f = space["f"]
    for numbers in ((2, 3, 0, -1, 1, 5, -3, 0, 2), (-1, 2, -1, 1, 0), (0, 1, 2)):
        compiled = fresh.compile(f)
        for n in (2, -1, 0):
            told(f, make(), n)
        for n in numbers:
            assert told(compiled, make(), n) == told(f, make(), n), (n, numbers)


@pytest.mark.skipif(torch is None, reason="without torch")
@pytest.mark.parametrize("expression", OF_TENSORS)
def test_numbers_of_any_sign_for_tensors(fresh, expression):
    def make():
        torch.manual_seed(0)
        return torch.arange(3.0) + 0.5

    check_numbers(fresh, expression, make)


@pytest.mark.parametrize("expression", OF_ARRAYS)
def test_numbers_of_any_sign_for_arrays(fresh, expression):
    check_numbers(fresh, expression, lambda: np.arange(3.0) + 0.5)
