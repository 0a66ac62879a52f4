"""SciPy, its like, and libraries that spread or keep work."""

from bench.library_programs import array, program, tensor


@program("scipy")
def scipy_signal():
    from scipy import signal

    def filtered(x):
        b, a = signal.butter(3, 0.2)
        return signal.filtfilt(b, a, x, padlen=3), signal.welch(x, nperseg=8)[1]

    return filtered, lambda n: (array(4 * n),)


@program("scipy")
def scipy_optimize():
    import numpy as np
    from scipy import optimize

    def fit(x):
        return optimize.minimize(lambda p: np.sum((x * p[0] + p[1]) ** 2), np.ones(2), method="BFGS").x.round(3)

    return fit, lambda n: (array(n),)


@program("scipy")
def scipy_linalg():
    from scipy import linalg

    def solved(a, b):
        return linalg.solve(a @ a.T + 1, b), linalg.expm(a / 10)

    return solved, lambda n: (array(n, n), array(n))


@program("scipy")
def scipy_interpolate():
    from scipy import interpolate

    def resampled(y):
        spline = interpolate.CubicSpline(range(len(y)), y)
        return spline([0.5, 1.5]), spline.integrate(0, 2)

    return resampled, lambda n: (array(n),)


@program("control")
def control_simulation():
    import control

    def response(k):
        system = control.tf([float(k)], [1, 2, float(k)])
        _, y = control.step_response(system, T=[0.1 * i for i in range(10)])
        gain, _, _ = control.lqr([[0, 1], [-1, -1]], [[0], [1]], [[1, 0], [0, 1]], [[1]])
        return y, gain

    return response, lambda n: (n,)


@program("filterpy")
def filterpy_kalman():
    import numpy as np
    from filterpy.kalman import KalmanFilter

    def track(z):
        f = KalmanFilter(dim_x=2, dim_z=1)
        f.F, f.H = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[1.0, 0.0]])
        for value in z:
            f.predict()
            f.update(value)
        return f.x

    return track, lambda n: (array(n),)


@program("skimage")
def skimage_edges():
    from skimage import filters

    def edges(image):
        return filters.gaussian(filters.sobel(image), 1)

    return edges, lambda n: (array(n, n),)


@program("shapely")
def shapely_areas():
    import numpy as np
    import shapely

    def areas(points):
        shapes = [shapely.Point(p).buffer(1.0) for p in points]
        return np.array([s.area for s in shapes]), shapely.unary_union(shapes).area

    return areas, lambda n: (array(n, 2),)


@program("numexpr")
def numexpr_evaluate():
    import numexpr

    def f(a, b):
        return numexpr.evaluate("2 * a + 3 * b ** 2")

    return f, lambda n: (array(n), array(n, seed=1))


@program("numba")
def numba_callee():
    import numba

    @numba.njit
    def total(x):
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i] * x[i]
        return s

    def norm(x):
        return (x / total(x)) * 2 + 1

    return norm, lambda n: (array(n),)


@program("networkx")
def networkx_paths():
    import networkx as nx

    def ranks(n):
        graph = nx.path_graph(n)
        graph.add_edge(0, n - 1)
        return nx.pagerank(graph), nx.shortest_path_length(graph, 0, n // 2)

    return ranks, lambda n: (n,)


@program("sympy")
def sympy_lambdify():
    import sympy

    x, y = sympy.symbols("x y")
    f = sympy.lambdify((x, y), sympy.diff(sympy.sin(x * y) ** 2, x), "numpy")

    def evaluated(a, b):
        return f(a, b) + 1

    return evaluated, lambda n: (array(n), array(n, seed=1))


@program("dask")
def dask_array():
    import dask.array as da

    def mean(x):
        return (da.from_array(x, chunks=4) ** 2).mean().compute(scheduler="synchronous")

    return mean, lambda n: (array(n),)


@program("joblib")
def joblib_threads():
    import joblib
    import torch

    def parts(x):
        return torch.stack(joblib.Parallel(2, backend="threading")(joblib.delayed(torch.sin)(row) for row in x))

    return parts, lambda n: (tensor(n, 3),)


@program("joblib", "cloudpickle")
def cloudpickle_closure():
    import cloudpickle

    def sent(x, k):
        return cloudpickle.loads(cloudpickle.dumps(lambda y: y * k + 1))(x)

    return sent, lambda n: (tensor(n), n)


@program("dill")
def dill_closure():
    import dill

    def sent(x, k):
        return dill.loads(dill.dumps(lambda y: y * k + 1))(x)

    return sent, lambda n: (tensor(n), n)
