"""A real Kafka broker: one process in KRaft mode, on loopback and free ports, with its data in a folder of its own.

`python -m tests.support.kafka.broker` starts one to try by hand, and stops it with Ctrl-C.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from etl.common.settings import load_settings
from etl.services import JarSet, jars, java, spark_jars
from etl.services.jarsets import SMALL_SERVER
from etl.services.process import HOST, free_ports, tail
from tests.support.waiting import until

PATIENCE = 60  # seconds; nothing is decided by it, a broker that takes longer has failed
USER, PASSWORD = "reader", "Correct-horse-battery-staple"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
# The controller admits a killed broker again once the session of its last life is over: after 9 s by default.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{plain},SASL_SSL://{host}:{sasl},FAR://{host}:{far},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{plain},SASL_SSL://{host}:{sasl},FAR://{host}:{proxy}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={folder}/keystore.pem
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=1000
"""


@dataclass(kw_only=True)
class Broker:
    """One broker; killed and started again it has the same ports and the same data."""

    folder: Path
    jars: Path
    plain: int  # port
    sasl: int
    controller: int
    far: int  # where a proxy reaches it
    proxy: int  # where it sends those who come by the proxy
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @classmethod
    def at(cls, folder: Path, jar_folder: Path) -> Broker:
        plain, sasl, controller, far, proxy = free_ports(5)
        found = cls(
            folder=folder,
            jars=jars(JarSet.KAFKA, jar_folder.absolute()),
            plain=plain,
            sasl=sasl,
            controller=controller,
            far=far,
            proxy=proxy,
        )
        properties = PROPERTIES.format(
            host=HOST,
            plain=plain,
            sasl=sasl,
            controller=controller,
            far=far,
            proxy=proxy,
            folder=folder,
            user=USER,
            password=PASSWORD,
        )
        found.properties.write_text(properties)
        found.certify()
        found.run("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(found.properties))
        return found

    def certify(self) -> None:
        """Give it a key, and whoever is to trust it a certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")]), datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
            .sign(key, SHA256())
            .public_bytes(Encoding.PEM)
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.keystore.write_bytes(private + certificate)
        self.certificate.write_bytes(certificate)

    @property
    def keystore(self) -> Path:
        """Return the broker's key and certificate, in PEM."""
        return self.folder / "keystore.pem"

    @property
    def certificate(self) -> Path:
        """Return the broker's self-signed certificate, in PEM."""
        return self.folder / "broker.pem"

    @property
    def properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"

    @property
    def servers(self) -> str:
        """Return the address for SLUICE_KAFKA."""
        return f"{HOST}:{self.plain}"

    @property
    def guarded(self) -> str:
        """Return the address of the listener with TLS that asks for a name and a password."""
        return f"{HOST}:{self.sasl}"

    def _command(self, *words: str) -> list[str]:
        [scala] = spark_jars().glob("scala-library-*.jar")
        return [str(java()), *SMALL_SERVER, "-cp", f"{self.jars}/*:{scala}", *words]

    def run(self, *words: str) -> None:
        """Run a command of Kafka's own."""
        _done(self._command(*words))

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self.log.open("ab") as log:
            words = self._command("kafka.Kafka", str(self.properties))
            self.process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        until(
            self._answers, lambda: f"the broker's answer: {tail(self.log, 20)}", patience=PATIENCE, every=0.05
        )

    def _answers(self) -> bool:
        """Tell whether the broker answers ApiVersions, Kafka's own sign of readiness; fail if the broker ended."""
        assert self.process is not None and self.process.poll() is None, tail(self.log, 20)
        with suppress(OSError), socket.create_connection((HOST, self.plain), timeout=5) as connection:
            connection.sendall(bytes.fromhex("0000000b0012000000000001000161"))
            return len(connection.recv(8)) == 8
        return False

    def kill(self) -> None:
        """SIGKILL, as a machine that fails; where it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)


def _done(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def a_broker(jar_folder: Path) -> Iterator[Broker]:
    """Run a broker; remove it afterwards with all its data."""
    with tempfile.TemporaryDirectory(prefix="sluice-kafka-") as folder:
        found = Broker.at(Path(folder), jar_folder)
        try:
            found.start()
            yield found
        finally:
            found.kill()


if __name__ == "__main__":
    with a_broker(load_settings().jars) as one, suppress(KeyboardInterrupt):
        print(f"export SLUICE_KAFKA={one.servers}", flush=True)
        signal.pause()
