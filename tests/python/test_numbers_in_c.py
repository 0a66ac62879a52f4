"""C functions, operators and methods of Python's numbers that are given numbers which change, or which tensors hold: what they give, and the errors they raise."""

import base64  # noqa: F401
import binascii  # noqa: F401
import bisect  # noqa: F401
import cmath  # noqa: F401
import collections  # noqa: F401
import colorsys  # noqa: F401
import datetime  # noqa: F401
import decimal  # noqa: F401
import fractions  # noqa: F401
import functools  # noqa: F401
import heapq  # noqa: F401
import itertools  # noqa: F401
import json  # noqa: F401
import math  # noqa: F401
import numbers  # noqa: F401
import operator  # noqa: F401
import random
import statistics  # noqa: F401
import string  # noqa: F401
import struct  # noqa: F401
import zlib  # noqa: F401
from array import array  # noqa: F401

import pytest

try:
    import torch
except ImportError:
    torch = None
np = pytest.importorskip("numpy")
pytestmark = pytest.mark.filterwarnings("ignore")


def try_(f):
    try:
        return f()
    except Exception as e:
        return type(e).__name__, str(e)


def match_(v):
    match v:
        case 0 | 1:
            return "small"
        case int(k) if k > 3:
            return "big", k
        case float(k):
            return "float", k
        case (a, b):
            return "two", a, b
        case {"a": x}:
            return "map", x
    return "other"


# p and q are floats, n and m small integers.
PROGRAMS = """
statistics.mean([p,q,n])
statistics.fmean([p,q,n])
statistics.median([p,q,n])
statistics.stdev([p,q,n])
statistics.variance([p,q,n])
statistics.pstdev([p,q,n,m])
statistics.mode([n,m,n])
statistics.geometric_mean([abs(p)+1,abs(q)+1])
statistics.harmonic_mean([abs(p)+1,abs(q)+1])
statistics.quantiles([p,q,n,m])
statistics.correlation([p,q,n],[m,n,p])
statistics.linear_regression([p,q+1,n+5],[m,n,p])
statistics.NormalDist(p,abs(q)+.1).cdf(n)
math.fsum([p,q,n,.1])
math.prod([p,q,n])
math.prod([n,m,3])
math.hypot(p,q,n)
math.dist([p,q],[n,m])
math.comb(n+5,m)
math.perm(n+5,m)
math.gcd(n,m,6)
math.lcm(n,m,6)
math.isqrt(n)
math.factorial(n)
math.frexp(p)
math.modf(p)
math.ldexp(p,n)
math.copysign(p,q)
math.nextafter(p,q)
math.ulp(p)
math.remainder(p,abs(q)+.5)
math.fmod(p,abs(q)+.5)
math.isclose(p,q)
math.floor(p),math.ceil(p),math.trunc(p)
math.atan2(p,q)
math.log(abs(p)+1,n+2)
math.log2(abs(p)+1),math.log1p(abs(p)),math.expm1(q/100)
math.erf(p),math.gamma(abs(q)+.5),math.lgamma(abs(p)+1)
math.cbrt(p),math.exp2(q/10)
math.degrees(p),math.radians(q)
cmath.sqrt(p),cmath.exp(complex(p/10,q/10)),cmath.phase(complex(p,q)),cmath.polar(complex(p,q))
round(p),round(p,1),round(n,-1),round(q,n)
divmod(p,abs(q)+.5),divmod(n,m+1),divmod(p,m+1)
pow(n+1,m,7),pow(p*p,.5),pow(n,m),n**-1 if n else 0
abs(n-m),-p,+q,~n
n//(m+1),n%(m+1),p//(abs(q)+1),p%(abs(q)+1)
n<<m,n>>1,n&m,n|m,n^m
int(p),float(n),complex(p,n),bool(n),bool(p),str(p),repr(q),hash(p),hash(n)
hex(n),oct(n),bin(n),chr(n+65),ascii(p)
format(p,'.3f'),format(n,'05d'),f'{p:.2e}|{n:>8}|{q!r}','%5.2f %d'%(p,n),'{:g} {}'.format(p,n)
p.is_integer(),p.hex(),p.as_integer_ratio(),float.fromhex(p.hex())
n.bit_length(),n.bit_count(),n.to_bytes(4,'little'),int.from_bytes(bytes([n,m]),'big'),n.as_integer_ratio()
p.real,p.imag,p.conjugate(),n.real,n.numerator,n.denominator
max(p,q,n),min(p,q,m),max([p,q],key=abs),min([n,m],default=3),max(n,m)
sorted([p,q,n,m]),sorted([p,q],reverse=True),sorted([n,m,2],key=lambda v:-v)
sum([p,q,n]),sum([n,m]),sum((n,m),p),sum([[n],[m]],[])
any([n,m]),all([n,m,p]),any(x>1 for x in (p,q))
list(range(n)),list(range(n,m+n)),range(n)[-1] if n else None,len(range(n,m+9,2)),n in range(5)
slice(n,m).indices(10),[1,2,3,4,5,6,7,8,9][n:m+n],'abcdefghij'[n],(1,2,3)*n
list(itertools.accumulate([p,q,n])),list(itertools.islice(itertools.count(n),3)),list(itertools.repeat(p,n))
list(itertools.combinations(range(m+1),2)),list(itertools.product([p],[n,m])),list(itertools.batched([p,q,n],2)) if hasattr(itertools,'batched') else 0
heapq.nsmallest(2,[p,q,n,m]),heapq.nlargest(2,[p,q,n]),(lambda h:(heapq.heapify(h),heapq.heappushpop(h,p),h))([q,n,m])
bisect.bisect([0,1,2,3,4],p),bisect.bisect_left([0,1,2,3],n),(lambda l:(bisect.insort(l,p),l))([0,1,2])
fractions.Fraction(n,m+1),fractions.Fraction(p),fractions.Fraction(n)+p
decimal.Decimal(n)/decimal.Decimal(m+1),decimal.Decimal(p),decimal.Decimal(str(p))
functools.reduce(operator.add,[p,q,n]),functools.reduce(operator.mul,[n,m,2])
operator.add(p,n),operator.truediv(p,m+1),operator.floordiv(n,m+1),operator.mod(p,m+1),operator.pow(n,m),operator.neg(p),operator.index(n),operator.concat([p],[n])
operator.lt(p,q),operator.eq(n,m),operator.itemgetter(n)([5,6,7,8,9,10]),operator.countOf([n,m,n],n)
struct.pack('<di',p,n),struct.unpack('<d',struct.pack('<d',p)),struct.calcsize('d')
json.dumps([p,n,{'a':q}]),json.loads(json.dumps({'k':n}))
collections.Counter([n,m,n]),collections.deque([p,q,n],maxlen=2),collections.OrderedDict([(n,p)]),collections.ChainMap({n:1},{m:2})[m]
datetime.timedelta(seconds=n,days=m),datetime.timedelta(seconds=p),datetime.date(2020,1,n+1),datetime.timedelta(hours=n)*p
array('d',[p,q,n]),array('i',[n,m]),bytes([n,m]),bytearray(n),memoryview(bytes([n,m]))[0]
isinstance(p,float),isinstance(n,int),isinstance(n,numbers.Integral),type(p),type(n),callable(p)
p==q,p<q,n==m,n<=m,p!=n,n is m,p is p,not n,n and p,p or q,p if n else q
{p:1,n:2}.get(p),{n,m,p},frozenset([n,m]),dict(a=n,b=p),dict(zip('ab',(n,p))),{n:p for n in range(3)}
[*map(abs,[p,q])],[*filter(None,[n,m])],[*zip([p],[n])],[*enumerate([p,q],n)],[*reversed([p,n])]
colorsys.rgb_to_hsv(abs(p)%1,abs(q)%1,.5),zlib.crc32(bytes([n])),binascii.hexlify(bytes([n,m])),base64.b64encode(bytes([n]))
string.Template('$a').substitute(a=n),'x'*n,'a'.ljust(n,'-'),'a'.center(n+3),'abc'.zfill(n+3),','.join(map(str,[n,p])),'abcabc'.find('c',n)
[p,q,n].index(n),[n,m,n].count(n),[p,q][n%2],(n,m)<(m,n),[p,n]==[p,n],(p,)+(q,),[p]*n
random.Random(n).random(),random.Random(n).sample(range(20),3),random.Random(m).gauss(p,1),random.Random(n).choice([p,q])
type(n)(p),type(p)(n),n.__add__(m),p.__mul__(q),int.__mul__(n,m),float.__add__(p,q),n.__index__(),n.__float__(),p.__int__(),p.__round__(1)
complex(p,q)*complex(n,m),abs(complex(p,q)),complex(n).conjugate(),(p+1j*q).real
(lambda *a,**k:(a,k))(p,n,k=q),getattr(p,'real'),hasattr(n,'imag'),vars(type('T',(),{'a':p}))['a'],id(n)==id(n)
int('1'*n or '0'),int(str(n),16),float(str(p)),float('1e%d'%n),eval('n+1',{'n':n}),ord(chr(n+65))
math.inf*p,math.nan*p,-math.inf if p<0 else p,p/1e-320,n/1e308,p*1e308,n*10**30,10**n,2.0**n
try_(lambda: n/0),try_(lambda: p/0),try_(lambda: n%0),try_(lambda: [1][n]),try_(lambda: math.sqrt(-abs(p)-1)),try_(lambda: math.log(n-5)),try_(lambda: chr(-n-1)),try_(lambda: (1e200+p)**2),try_(lambda: int(p*math.inf)),try_(lambda: n<<-1),try_(lambda: range(p)),try_(lambda: p<<n),try_(lambda: 'a'*p),try_(lambda: [1,2][p])
match_(n),match_(p),match_((n,p)),match_([p,q]),match_({'a':n})
try_(lambda: (1e200+p)**2), try_(lambda: int(p*math.inf)), try_(lambda: n<<-1), try_(lambda: range(p)), try_(lambda: p<<n), try_(lambda: 'a'*p)
try_(lambda: [1,2][p]), try_(lambda:p%0), try_(lambda: p//0), try_(lambda: divmod(n,0)), try_(lambda: 0**-n if n else 0), try_(lambda: n+'a')
try_(lambda: p+[]), try_(lambda: len(n)), try_(lambda: n[0]), try_(lambda: n.foo), try_(lambda: p()), try_(lambda: n<'a')
try_(lambda: list(p)), try_(lambda: math.sqrt(n-9)), try_(lambda: float('a'*n)), try_(lambda:(-p)**.5), try_(lambda: n@n), try_(lambda: {}[n])
try_(lambda: [][n]), try_(lambda: (1,)[n+5]), try_(lambda: 'ab'[n+3]), try_(lambda: chr(-n-1)), try_(lambda: bytes([n+300])), try_(lambda: [1].index(n+7))
try_(lambda: (1,).index(p)), try_(lambda: [].pop(n)), try_(lambda: setattr(n,'a',1)), try_(lambda: int('x%d'%n)), try_(lambda: math.factorial(-n-1)), try_(lambda: round(p,'a'))
try_(lambda: '%d'%'a'), try_(lambda: f'{n:.2q}'), try_(lambda: f'{p:d}'), try_(lambda: range(1,2,n-n)), try_(lambda: slice(1,2,n-n).indices(3)), try_(lambda: [1,2][::n-n])
try_(lambda: max(n,'a')), try_(lambda: sum([n,'a'])), try_(lambda: sorted([n,'a'])), try_(lambda: (lambda a:a)(n,p)), try_(lambda: int.__add__(p,n)), try_(lambda: n.__add__(p))
try_(lambda: p.__lt__('a')), try_(lambda: n.__radd__(2)), try_(lambda: n.__eq__(p)), try_(lambda: n.__pow__(2,5)), try_(lambda: n.__divmod__(3)), try_(lambda: n.__lshift__(2))
try_(lambda: n.__rsub__(2)), try_(lambda: n.__neg__()), try_(lambda:n.__bool__()), try_(lambda:n.__hash__()), try_(lambda:n.__abs__()), try_(lambda:p.__truediv__(2))
try_(lambda:p.__rpow__(2)), try_(lambda:p.__floor__()), try_(lambda:n.__format__('04d')), try_(lambda:n.__repr__()), try_(lambda: p.__mod__(2)), try_(lambda: n.__and__(3))
try_(lambda: n.__lt__(2)), try_(lambda: n.__trunc__())
n.__add__(m), int.__mul__(n,m), n.__add__(3), int.__add__(3, m), m.__rsub__(n), n.__lt__(m), n.__eq__(m), float(n).__add__(m), (2.5).__mul__(m), (2).__add__(m), m.__divmod__(n+1), (7).__pow__(m), [1,2].__mul__(m), 'ab'.__mul__(m), [5,6,7,8].__getitem__(m), (1).__lshift__(m), (1).__eq__(m), (1.5).__eq__(p), (1.5).__add__(p), float.__add__(1.5, p)
set([n,m,p,q]),{n,p},frozenset({q,n,-1,-2}),{*range(n+3),p}
""".strip().splitlines()
FROM = {
    "outside": "y = x * p + n",
    "tensors": "y = x * p + n; p = y.sum().item(); q = float((x * q).mean()); n = int((x * n).mean()); m = (x * m)[0].long().item()",
}


@pytest.mark.parametrize("source", FROM)
@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_numbers_as_python_has_them(fresh, program, source):
    if source == "tensors" and not torch:
        pytest.skip("without torch")
    space = dict(globals())
    exec(f"def f(x, p, q, n, m):\n    {FROM[source]}\n    return y.sum() * 1, ({program})\n", space)
    f, compiled = space["f"], fresh.compile(space["f"])
    draw = random.Random(program)
    for call in range(9):
        floats = draw.choice([draw.random() * 10 - 5, 0.5, 2.0, draw.random() * 1e3, -0.0 if call > 6 else 1.25]), draw.random() * 10 - 3
        given = torch.ones(3) if torch else np.ones(3), *floats, draw.randint(0, 5), draw.randint(0, 4)
        assert repr(try_(lambda: compiled(*given))) == repr(try_(lambda: f(*given))), given[1:]  # noqa: B023
    assert compiled.cache_info()["captures"]


NUMPYS = """
(1.).__add__(s)
(1.).__radd__(s)
(2.).__mul__(s) - (2.).__truediv__(s)
float.__sub__(3., s)
(1.).__lt__(s), (1.5).__eq__(s)
(1j).__add__(s * 1j)
(1).__add__(s)
(1.).__add__(np.float32(s))
""".strip().splitlines()


@pytest.mark.parametrize("program", NUMPYS, ids=range(len(NUMPYS)))
def test_numbers_of_numpy_that_were_made_here(fresh, program):
    space = dict(globals())
    exec(f"def f(a):\n    s = np.sum(a)\n    return a * 2, ({program})\n", space)
    f, compiled = space["f"], fresh.compile(space["f"])
    for call in range(3):
        a = np.arange(4.0) + call
        assert repr(compiled(a)) == repr(f(a))
    assert compiled.cache_info()["captures"]
