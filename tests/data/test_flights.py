import io
import os
import zipfile
from datetime import date

import numpy as np
import pytest

from fl_lightning.data import Flights
from fl_lightning.data.archives import PackageFile
from fl_lightning.data.flights import load_flights

HEAD = "month,day,sched_dep_time,hour,dep_delay,arr_delay,carrier,origin,distance"
ROWS = [
    "10,1,500,5,0,15,AA,EWR,100",
    "2,3,700,7,-5,16,AA,JFK,200",
    "2,3,600,6,30,90,AA,JFK,300",
    "1,1,600,6,0,NA,AA,JFK,400",
    "1,1,600,6,0,-9,ZZ,LGA,500",
]


@pytest.fixture
def made(monkeypatch):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("flights.csv", "\n".join([HEAD, *ROWS]))
    monkeypatch.setattr(PackageFile, "members", lambda *_: [packed.getvalue(), b"carrier,name\nAA,Able\nZZ,Zed\n"])


def test_flights_are_in_time_order_and_the_last_are_the_test(made):
    federation = Flights(test_share=0.4).load(0)
    assert (list(federation.names), federation.sizes.tolist()) == (["Able", "Zed"], [2, 1])
    inputs, late = federation.batch(0, np.arange(2))
    assert (inputs[:, 2] * 1000).round().tolist() == [300, 200]
    assert late.tolist() == [1, 1]
    assert federation.test[1].tolist() == [0]  # 15 minutes are not over 15
    months, weekdays, airports = np.split(federation.test[0][0, 5:].numpy(), [12, 19])
    assert (months.argmax() + 1, weekdays.argmax(), airports.argmax()) == (10, date(2013, 10, 1).weekday(), 0)
    assert federation.in_time_order


@pytest.mark.realdata
def test_the_real_flights():
    root = os.environ.get("FL_LIGHTNING_DATA", "datasets")
    flights, airlines = load_flights(root)
    assert (len(flights["carrier"]), len(airlines)) == (336_776, 16)
    federation = Flights(root).load(0)
    assert (federation.num_clients, int(federation.sizes.sum()), len(federation.test[1])) == (16, 261_877, 65_469)
    assert (federation.sizes.min(), federation.sizes.max()) == (23, 46_226)
    sizes = dict(zip(federation.names, federation.sizes, strict=True))
    arrived = sum(c == "HA" and a != "NA" for c, a in zip(flights["carrier"], flights["arr_delay"], strict=True))
    assert sizes["Hawaiian Airlines Inc."] == arrived - round(0.2 * arrived)
