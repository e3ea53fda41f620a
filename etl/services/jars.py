"""The Java side: which Java runs, and the pinned jars, each checked against its recorded SHA-256.

The jars come once, through Spark's own resolver, into a folder that is complete or not there.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from enum import StrEnum
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from etl.errors import SetupError
from etl.services.process import make_folder, only_one

OLDEST_JAVA = 17
REPOSITORY_VARIABLE = "DEFAULT_ARTIFACT_REPOSITORY"  # Spark's own name for a mirror of Maven Central
IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="true"{root}/></resolvers>
</ivysettings>
"""


class JarSet(StrEnum):
    """Jars that belong on one class path. The sets are apart since their versions of the AWS SDK differ."""

    S3PROXY = "s3proxy"  # the embedded S3 server
    S3A = "s3a"  # what Spark needs beside its own jars to read and write s3a://


def java() -> Path:
    """The java that Spark would run too: JAVA_HOME's, else the one on PATH; never one that is too old."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    install = f"install Java {OLDEST_JAVA} or later and set JAVA_HOME to it"
    if found is None:
        raise SetupError(f"no java in {where}", remedy=install)
    result = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', result.stderr)
    if version is None:
        raise SetupError(f"{found} (from {where}) does not run: {result.stderr.strip()[-200:]}", remedy=install)
    if int(version[1]) < OLDEST_JAVA:
        raise SetupError(f"{found} (from {where}) is Java {version[1]}, too old", remedy=install)
    return Path(found)


def jars(which: JarSet, folder: Path) -> Path:
    """The folder below `folder` that holds exactly the set's jars; resolved now if it is not there."""
    target = folder / which.value
    if target.is_dir():
        return target
    with only_one(folder):
        if not target.is_dir():
            _resolve(which, target)
    return target


def _resolve(which: JarSet, target: Path) -> None:
    work = make_folder(target.with_name(f".{which}.part"))
    settings = work / "ivysettings.xml"
    mirror = os.environ.get(REPOSITORY_VARIABLE)
    settings.write_text(IVY_SETTINGS.format(root=f" root={quoteattr(mirror)}" if mirror else ""))
    excludes = _names(f"{which}-excludes.txt")
    command = [
        *(java(), "-cp", _spark() / "jars" / "*", "org.apache.spark.deploy.SparkSubmit", "--master", "local"),
        *("--packages", ",".join(_names(f"{which}-packages.txt"))),
        *(("--exclude-packages", ",".join(excludes)) if excludes else ()),
        *("--conf", f"spark.jars.ivy={work / 'ivy'}", "--conf", f"spark.jars.ivySettings={settings}"),
        # what Spark runs once the jars are there: a command that does nothing
        *("--class", "org.apache.spark.deploy.SparkSubmit", "spark-internal", "--version"),
    ]
    log = work / "resolve.log"
    with log.open("w") as output:
        done = subprocess.run([str(word) for word in command], stdout=output, stderr=subprocess.STDOUT, check=False)
    wrong = _differences(which, work / "ivy" / "jars") if done.returncode == 0 else "the resolver failed"
    if wrong:
        # kept, a half-filled cache would make every later try fail in the same way
        kept = target.with_name(f"{which}-resolve.log")
        log.replace(kept)
        shutil.rmtree(work)
        raise SetupError(
            f"the jars of {which} could not be had: {wrong}; the resolver's log is {kept}",
            remedy=f"see that Maven Central is reachable (or set {REPOSITORY_VARIABLE} to a mirror), then try again",
        )
    (work / "ivy" / "jars").rename(target)
    shutil.rmtree(work)


def _differences(which: JarSet, folder: Path) -> str:
    lines = (line.split() for line in _names(f"{which}.sha256"))
    expected = {name.lstrip("*"): digest for digest, name in lines}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.jar")}
    changed = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if not changed:
        return ""
    return f"{len(changed)} of {len(expected)} jars are missing or not the recorded ones, {changed[0]} first"


def _names(file: str) -> list[str]:
    resource = files(__package__) / file
    return resource.read_text().split("\n")[:-1] if resource.is_file() else []


def _spark() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise SetupError("pyspark is not installed", remedy="make install")
    return Path(found.origin).parent
