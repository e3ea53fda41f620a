"""docker-compose.yml and Dockerfile keep the rules that no engine would see to."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.compose import FILE, compose_file, make_env, variables_of
from tests.support.environment import REPOSITORY

DOCKERFILE = REPOSITORY / "Dockerfile"
EXACT = re.compile(r"[\w./-]+:v?\d+\.\d+[\w.-]*")
SECRET = re.compile(r"PASSWORD$|SECRET|_KEY$|TOKEN")
NAMES_OF_USERS = {"ROOT_ACCESS_KEY", "AWS_ACCESS_KEY_ID"}
REQUIRED = re.compile(r"\$\{(\w+):\?[^}]+\}")
AS_WRITTEN = yaml.safe_load(FILE.read_text())["services"]  # variables are not resolved


def lint(*command: str) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_is_valid_by_the_specifications_own_schema() -> None:
    lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE))


def test_the_dockerfile_is_clean_by_hadolint() -> None:
    lint("hadolint", str(DOCKERFILE))


def test_images_have_exact_tags_and_ours_is_of_this_version() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    images = {service["image"] for service in AS_WRITTEN.values()}
    [base] = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    assert [image for image in {*images, base} if not EXACT.fullmatch(image)] == []
    assert f"sluice:{version}" in images


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_a_service_has_no_secret_of_its_own(name: str) -> None:
    given = AS_WRITTEN[name].get("environment", {})
    secrets = {key: value for key, value in given.items() if SECRET.search(key) and key not in NAMES_OF_USERS}
    assert [key for key, value in secrets.items() if not REQUIRED.fullmatch(value)] == []


def test_without_the_secrets_nothing_starts() -> None:
    with pytest.raises(KeyError, match="make compose-env"):
        compose_file({})


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_a_service_is_reached_on_loopback_alone_and_says_how_it_is(name: str) -> None:
    service = AS_WRITTEN[name]
    assert [port for port in service.get("ports", ()) if not port.startswith("127.0.0.1:")] == []
    assert not {"network_mode", "privileged", "user"} & service.keys()
    ends = service.get("restart") == "no"
    assert ends != ("healthcheck" in service)
    if service["image"].startswith("sluice:"):
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])


def test_a_run_leaves_the_worker_room_for_another() -> None:
    """One that is kept up never gives its executor back, and replays are to work beside it."""
    conf = json.loads(AS_WRITTEN["airflow-scheduler"]["environment"]["SLUICE_SPARK_CONF"])
    words = AS_WRITTEN["spark-worker"]["command"]
    cores, memory = (words[words.index(name) + 1] for name in ("--cores", "--memory"))
    assert 2 * int(conf["spark.cores.max"]) <= int(cores)
    assert (conf["spark.executor.memory"][-1], memory[-1].lower()) == ("g", "g")
    assert 2 * int(conf["spark.executor.memory"][:-1]) <= int(memory[:-1])


def test_data_outlives_its_container() -> None:
    named = set(yaml.safe_load(FILE.read_text())["volumes"])
    used = {volume.split(":")[0] for service in AS_WRITTEN.values() for volume in service["volumes"]}
    assert named == {source for source in used if not source.startswith("$")}


def test_the_image_is_not_roots_and_installs_what_the_locks_have() -> None:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] not in ("0", "root")
    installs = re.findall(r"pip install [^&\n]*", text)
    assert len(installs) == 3
    unlocked = [one for one in installs if "--require-hashes" not in one]
    assert len(unlocked) == 1
    assert "--no-deps" in unlocked[0]


def test_the_image_gets_no_secret_and_no_data() -> None:
    wanted = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert wanted[0] == "*"
    assert not [line for line in wanted if line.startswith(("!.", "!*"))]


def test_the_secrets_are_random_all_that_is_wanted_and_their_owners_alone(
    made_env: Path, tmp_path: Path
) -> None:
    assert stat.S_IMODE(made_env.stat().st_mode) == 0o600
    assert make_env(tmp_path).returncode == 0
    first, second = variables_of(made_env), variables_of(tmp_path / ".env")
    assert first.keys() == second.keys() == set(REQUIRED.findall(FILE.read_text()))
    values = [*first.values(), *second.values()]
    assert len(set(values)) == len(values)
    assert min(len(value) for value in values) >= 43, "32 random bytes"


def test_secrets_that_are_there_stay(made_env: Path) -> None:
    before = made_env.read_bytes()
    again = make_env(made_env.parent)
    assert again.returncode != 0
    assert ".env is there already" in again.stderr
    assert made_env.read_bytes() == before


def test_git_does_not_see_the_secrets() -> None:
    subprocess.run(["git", "check-ignore", "--quiet", ".env"], cwd=REPOSITORY, check=True)
