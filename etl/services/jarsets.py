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
LOG = "resolve.log"
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
        raise SetupError(
            f"{found} (from {where}) does not run: {result.stderr.strip()[-200:]}", remedy=install
        )
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


def record(which: JarSet, folder: Path, into: Path) -> None:
    """Resolve the set anew and write the digests that `jars` checks; for whoever changes the packages."""
    work = make_folder(folder / f".{which}.record")
    found = _digests(_fetch(which, work))
    into.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(found.items())))
    shutil.rmtree(work)


def _resolve(which: JarSet, target: Path) -> None:
    """Put the set into `target`: as a whole, checked, or not at all."""
    work = make_folder(target.with_name(f".{which}.part"))
    wrong = _differences(which, found := _fetch(which, work))
    if wrong:
        kept = target.with_name(f"{which}-resolve.log")
        (work / LOG).replace(kept)
        shutil.rmtree(work)  # kept, a half-filled cache would make every later try fail in the same way
        raise SetupError(
            f"the jars of {which} could not be had: {wrong}; the resolver's log is {kept}",
            remedy=f"see that Maven Central is reachable, or set {REPOSITORY_VARIABLE} to a mirror",
        )
    found.rename(target)
    shutil.rmtree(work)


def _fetch(which: JarSet, work: Path) -> Path:
    """Run Spark's resolver with a cache of its own: a half-filled ~/.m2 or ~/.ivy2 can't make it fail."""
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
    with (work / LOG).open("w") as log:
        subprocess.run([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT, check=False)
    return work / "ivy" / "jars"


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.jar")}


def _differences(which: JarSet, folder: Path) -> str:
    lines = (line.split() for line in _names(f"{which}.sha256"))
    expected, found = {name: digest for digest, name in lines}, _digests(folder)
    if not found:
        return "the resolver brought none"
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
