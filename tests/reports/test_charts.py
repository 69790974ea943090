"""Charts hold what is drawn, and no more of it than a screen can show."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metareplay.reports.charts import MOST_POINTS, Line, Lines, Panel


@given(st.integers(1, 2000))
def test_long_curves_are_thinned(count: int) -> None:
    values = np.arange(float(count))
    line = Line(name="accuracy", values=values, spread=values + 1)
    chart = Lines(title="", told="Told.", x="", y="", panels=[Panel(x=values.tolist(), lines=[line])]).to_json()
    [panel] = chart["panels"]
    [drawn] = panel["lines"]
    assert len(panel["x"]) <= MOST_POINTS + 1
    assert len(panel["x"]) >= min(count, MOST_POINTS // 2)
    assert panel["x"][0] == 0
    assert panel["x"][-1] == count - 1
    np.testing.assert_allclose(drawn["y"], panel["x"])
    np.testing.assert_allclose(drawn["spread"], np.array(panel["x"]) + 1)
    assert ("is shown" in chart["told"]) == (count > MOST_POINTS)
