"""NVFlare's FedAvg in its own simulator: the log, the verdict and the cure, on sites that pull towards unit vectors."""

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from fl_lightning.audit import audit, read_log

CLIENT = """
import numpy as np
import nvflare.client as flare

EXAMPLES = {"site-1": 20, "site-2": 60, "site-3": 120}
EPOCHS = {"site-1": 4, "site-2": 1, "site-3": 2}
flare.init()
name = flare.get_site_name()
while flare.is_running():
    model = flare.receive()
    if model is None:
        break
    index = int(name[-1]) - 1
    steps = EPOCHS[name] * EXAMPLES[name] // 10
    x = np.asarray(model.params["numpy_key"], dtype=np.float64).ravel()
    own = np.eye(3)[index]
    lost = name == "site-2" and model.current_round % 2 == 1
    params = {} if lost else {"numpy_key": own + 0.999**steps * (x - own)}
    meta = {"NUM_STEPS_CURRENT_ROUND": steps, "num_examples": EXAMPLES[name]}
    flare.send(flare.FLModel(params=params, metrics={"accuracy": 0.5}, meta=meta))
"""
JOB = """
import sys
import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv
from fl_lightning.nvflare import HeterogeneityAware, audited

cure, rounds, folder = sys.argv[1] == "cure", int(sys.argv[2]), sys.argv[3]
recipe = NumpyFedAvgRecipe(
    name="units", min_clients=3, num_rounds=rounds, model=[0.0, 0.0, 0.0], train_script="client.py",
    aggregator=HeterogeneityAware() if cure else None,
)
audited(recipe)
recipe.execute(SimEnv(num_clients=3, num_threads=3, workspace_root=folder))
"""
EXAMPLES = np.array([20, 60, 120])
STEPS = np.array([8, 6, 24])


def test_a_missing_nvflare_is_said_in_one_line():
    code = "import sys; sys.modules['nvflare'] = None; import fl_lightning.nvflare"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "NVFlare is not installed: pip install -e '.[nvflare]'" in done.stderr


def test_the_cure_weighs_by_steps_and_bounds_what_a_liar_gains():
    pytest.importorskip("nvflare")
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

    from fl_lightning.nvflare import HeterogeneityAware

    def aggregated(steps, **options):
        cure = HeterogeneityAware(wanted="equal", **options)
        for _ in range(3):
            cure.reset_stats()
            for place, taken in enumerate(steps):
                meta = {"client_name": f"site-{place}", "NUM_STEPS_CURRENT_ROUND": taken}
                params = {"x": np.eye(len(steps))[place]}
                cure.accept_model(FLModel(params=params, params_type=ParamsType.DIFF, metrics={"a": 1.0}, meta=meta))
            result = cure.aggregate_model()
        return result.params["x"]

    honest = aggregated([2, 4, 8])
    assert honest * [2, 4, 8] == pytest.approx(np.full(3, (honest * [2, 4, 8])[0]))
    assert honest.sum() == pytest.approx(1)
    liar = aggregated([4, 4, 0.001], bound=3.0)
    assert liar[2] == pytest.approx(3 * liar[0])
    with pytest.raises(ValueError, match="reports no num_examples"):
        HeterogeneityAware().accept_model(FLModel(params={"x": 1}, meta={"NUM_STEPS_CURRENT_ROUND": 3}))
    with pytest.raises(ValueError, match="give both or neither"):
        HeterogeneityAware(epochs=1)


def test_a_site_that_never_fetches_its_task_was_asked(tmp_path):
    pytest.importorskip("nvflare")
    from types import SimpleNamespace

    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.app_common.app_constant import AppConstants
    from nvflare.app_common.app_event_type import AppEventType

    from fl_lightning.nvflare import HeterogeneityAware, ParticipationRecorder

    controller = SimpleNamespace(sample_clients=lambda number: ["site-1", "site-3"][:number])
    workspace = SimpleNamespace(get_run_dir=lambda job: tmp_path)
    engine = SimpleNamespace(
        get_component={"fedavg": controller}.get,
        get_workspace=lambda: workspace,
        get_clients=lambda: [SimpleNamespace(name=f"site-{place}") for place in (1, 2, 3)],
    )
    told = {
        FLContextKey.WORKFLOW: "fedavg",
        AppConstants.CURRENT_ROUND: 0,
        AppConstants.TRAINING_RESULT: None,
        AppConstants.AGGREGATION_RESULT: SimpleNamespace(meta={}),
    }
    context = SimpleNamespace(
        get_engine=lambda: engine, get_prop=lambda name, default=None: told.get(name, default), get_job_id=lambda: "job"
    )
    recorder, cure = ParticipationRecorder(), HeterogeneityAware()
    recorder.handle_event(EventType.START_RUN, context)
    for each in (recorder, cure):
        each.handle_event(AppEventType.ROUND_STARTED, context)
    assert controller.sample_clients(2) == ["site-1", "site-3"]
    cure.reset_stats()
    assert cure._asked == {"site-1", "site-3"}
    recorder.handle_event(AppEventType.AFTER_AGGREGATION, context)
    rows = [line.split(",")[1:4] for line in (tmp_path / "participation.csv").read_text().splitlines()[1:]]
    assert sorted(rows) == [["site-1", "1", "0"], ["site-2", "0", "0"], ["site-3", "1", "0"]]


@pytest.mark.slow
@pytest.mark.parametrize("cure", [False, True])
@pytest.mark.skipif(find_spec("nvflare") is None, reason="needs the extra nvflare")
def test_nvflares_simulator_gives_a_log_and_a_verdict(cure, tmp_path):
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, "job.py", "cure" if cure else "plain", "20", str(tmp_path / "work")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "What this federation optimises" in done.stdout + done.stderr
    found = audit(read_log(next((tmp_path / "work").rglob("participation.csv"))))
    order = [int(name[-1]) - 1 for name in found.names]
    assert found.num_rounds == 20
    assert found.weights == pytest.approx((EXAMPLES / 200)[order])
    assert found.lost.value == pytest.approx(np.array([0, 0.5, 0])[order])
    both, without = (STEPS * there for there in ([1, 1, 1], [1, 0, 1]))
    expected = both * STEPS / both.sum() + without * STEPS / without.sum()
    if not cure:
        assert found.objective.value == pytest.approx((expected / expected.sum())[order])
        assert found.distance.low > 0.3
    else:  # it has to learn first that every other upload of site-2 is lost
        assert found.distance.value < 0.15
