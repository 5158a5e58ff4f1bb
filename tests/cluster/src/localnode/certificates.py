"""The cluster's CA, its certificates, and kubeconfigs, made with the openssl program: the standard library has no X.509.

One CA per node and start; its key never leaves the state directory, which only root can read.
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from localnode import paths
from localnode.commands import run

SERVICE_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
)
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Subject:
    """Who a client certificate speaks for."""

    file: str
    user: str
    groups: tuple[str, ...] = ()

    @property
    def openssl(self) -> str:
        """The subject in openssl's notation; an escaped slash is not needed as no name of ours holds one."""
        return "".join(f"/O={group}" for group in self.groups) + f"/CN={self.user}"


ADMIN = Subject("admin", "admin", ("system:masters",))
CONTROLLER = Subject("controller-manager", "system:kube-controller-manager")
SCHEDULER = Subject("scheduler", "system:kube-scheduler")
PROXY = Subject("proxy", "system:kube-proxy")
ROUTER = Subject("kube-router", "kube-router")
KUBELET_CLIENT = Subject("apiserver-kubelet", "kube-apiserver", ("system:masters",))


def node_subject(node: str) -> Subject:
    """kubelet's identity, which the Node authorizer knows by this form."""
    return Subject("kubelet", f"system:node:{node}", ("system:nodes",))


@dataclass(frozen=True)
class Authority:
    """A directory with ca.crt and ca.key and everything signed by them."""

    directory: Path

    def create(self) -> None:
        """Make the CA and the service-account key; a second call keeps both."""
        if (self.directory / "sa.key").exists():
            return
        paths.made(self.directory).chmod(0o700)
        extensions = (
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
        )
        out = ("-keyout", self.path("ca.key"), "-out", self.path("ca.crt"))
        run(["openssl", "req", "-x509", *CURVE, *out, "-days", "365", "-subj", "/CN=blockwarden-localnode", *extensions])
        run(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self.path("sa.key")])

    def path(self, name: str) -> str:
        """Path of a file of the authority's."""
        return str(self.directory / name)

    def sign(self, subject: Subject, names: tuple[str, ...] = (), addresses: tuple[str, ...] = ()) -> None:
        """A key and a certificate, for a server when it has names or addresses, else for a client."""
        if (self.directory / f"{subject.file}.crt").exists():
            return
        usage = "serverAuth,clientAuth" if addresses else "clientAuth"
        alternative = ",".join([*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)])
        extensions = f"basicConstraints=CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage={usage}\n"
        if alternative:
            extensions += f"subjectAltName={alternative}\n"
        request, key, certificate = (self.path(f"{subject.file}.{end}") for end in ("csr", "key", "crt"))
        run(["openssl", "req", "-new", *CURVE, "-keyout", key, "-out", request, "-subj", subject.openssl])
        signing = ["-CA", self.path("ca.crt"), "-CAkey", self.path("ca.key"), "-CAcreateserial", "-days", "365"]
        run(
            ["openssl", "x509", "-req", "-in", request, *signing, "-extfile", "/dev/stdin", "-out", certificate], stdin=extensions
        )

    def kubeconfig(self, subject: Subject, server: str) -> str:
        """A self-contained kubeconfig (JSON is YAML) for the subject, signed here when it has no certificate yet."""
        self.sign(subject)
        return render_kubeconfig(
            server, *(self._base64(name) for name in ("ca.crt", f"{subject.file}.crt", f"{subject.file}.key"))
        )

    def _base64(self, name: str) -> str:
        return base64.b64encode((self.directory / name).read_bytes()).decode()


def render_kubeconfig(server: str, authority: str, certificate: str, key: str) -> str:
    """The kubeconfig's text; all three PEM files come base64-encoded."""
    name = "blockwarden"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": name, "user": {"client-certificate-data": certificate, "client-key-data": key}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return json.dumps(document, indent=1) + "\n"
