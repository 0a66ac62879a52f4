"""Tables and what learns from them."""

from bench.library_programs import array, program


@program("pandas")
def pandas_groupby():
    import pandas as pd

    def mean_by_key(values):
        frame = pd.DataFrame({"key": [i % 3 for i in range(len(values))], "value": values})
        return frame.groupby("key")["value"].mean().to_numpy()

    return mean_by_key, lambda n: (array(n),)


@program("pandas")
def pandas_rolling():
    import pandas as pd

    def smoothed(values):
        series = pd.Series(values, index=pd.date_range("2024-01-01", periods=len(values)))
        return (series.rolling(3).mean().fillna(0) - series.shift(1).fillna(0)).to_numpy()

    return smoothed, lambda n: (array(n),)


@program("pandas")
def pandas_columns():
    import pandas as pd

    def standardised(values):
        frame = pd.DataFrame(values, columns=["a", "b"])
        frame["c"] = frame["a"] * frame["b"]
        return ((frame - frame.mean()) / frame.std()).loc[frame["c"] > 0].to_numpy()

    return standardised, lambda n: (array(n, 2),)


@program("xarray")
def xarray_anomaly():
    import xarray as xr

    def anomaly(values):
        data = xr.DataArray(values, dims=("time", "x"), coords={"x": range(values.shape[1])})
        return (data - data.mean("time")).sel(x=1).to_numpy()

    return anomaly, lambda n: (array(n, 4),)


@program("statsmodels")
def statsmodels_ols():
    import statsmodels.api as sm

    def fit(x, y):
        result = sm.OLS(y, sm.add_constant(x)).fit()
        return result.params, result.rsquared

    return fit, lambda n: (array(n, 2), array(n, seed=1))


@program("sklearn")
def sklearn_pipeline():
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def fit(x, y):
        return make_pipeline(StandardScaler(), Ridge()).fit(x, y).predict(x)

    return fit, lambda n: (array(n, 3), array(n, seed=1))


@program("sklearn")
def sklearn_predict():
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(array(50, 3), array(50) > 0)

    def probabilities(x):
        return model.predict_proba(x)[:, 1]

    return probabilities, lambda n: (array(n, 3),)


@program("sklearn")
def sklearn_metrics():
    from sklearn.metrics import mean_squared_error, pairwise_distances

    def score(x, y):
        return mean_squared_error(x, y), pairwise_distances(x, y)

    return score, lambda n: (array(n, 3), array(n, 3, seed=1))


@program("polars")
def polars_groups():
    import numpy as np
    import polars as pl

    def grouped(x):
        frame = pl.DataFrame({"key": np.arange(len(x)) % 3, "value": x})
        sums = frame.group_by("key").agg(pl.col("value").sum()).sort("key")
        return sums["value"].to_numpy() * 2, frame["value"].mean()

    return grouped, lambda n: (array(n),)
