"""What a build must know of its machine to fetch packages: certificates, pip's and uv's configuration.

Everything is read from this machine's files and environment at run time and handed to the build as read-only mounts
over the places the tools look in by themselves. So a Dockerfile stays ordinary and an image holds none of it. Proxy
variables need no help: buildah passes them on, and does not store them.
"""

import configparser
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PIP_FILES = ("/etc/xdg/pip/pip.conf", "/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")


@dataclass(frozen=True)
class Mount:
    """One read-only mount of a build."""

    source: Path
    target: str


def pip_settings(environment: Mapping[str, str], texts: Iterable[str]) -> dict[str, str]:
    """pip's [global] and [install] settings as pip merges them: files in order, then PIP_* variables."""
    settings: dict[str, str] = {}
    for text in texts:
        parser = configparser.RawConfigParser()
        parser.read_string(text)
        for section in ("global", "install"):
            if parser.has_section(section):
                settings.update(parser.items(section))
    for name, value in environment.items():
        if name.startswith("PIP_") and name != "PIP_CONFIG_FILE":
            settings[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return settings


def pip_conf(settings: Mapping[str, str]) -> str:
    """The merged pip.conf; certificates are named by where the build has them, several values go on lines of their own."""
    kept = {
        name: value
        for name, value in settings.items()
        if name not in {"cert", "cache-dir", "target", "user", "require-virtualenv"}
    }
    kept["cert"] = str(CERTIFICATES)
    lines = [f"{name} = {chr(10).join('    ' + part for part in value.split()).strip()}" for name, value in sorted(kept.items())]
    return "[global]\n" + "\n".join(lines) + "\n"


def uv_toml(settings: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """uv.toml: pip's indexes where uv has none of its own, and the system's certificates instead of the bundled ones."""
    default = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL") or settings.get("index-url")
    extra = environment.get("UV_INDEX") or environment.get("UV_EXTRA_INDEX_URL") or settings.get("extra-index-url", "")
    links = environment.get("UV_FIND_LINKS") or settings.get("find-links", "")
    lines = ["native-tls = true"]
    if links:
        lines.append(f"find-links = [{', '.join(_quoted(link) for link in links.replace(',', ' ').split())}]")
    for url in extra.split():
        lines += ["[[index]]", f"url = {_quoted(url.rpartition('=')[2] if '=http' in url else url)}"]
    if default:
        lines += ["[[index]]", f"url = {_quoted(default)}", "default = true"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def host_settings() -> dict[str, str]:
    """This machine's pip settings."""
    files = [Path(name).expanduser() for name in PIP_FILES]
    if os.environ.get("PIP_CONFIG_FILE"):
        files = [Path(os.environ["PIP_CONFIG_FILE"])]
    return pip_settings(os.environ, [file.read_text() for file in files if file.is_file()])


def bundle() -> Path | None:
    """The certificates this machine trusts: what SSL_CERT_FILE or pip names, else the system's."""
    for candidate in (os.environ.get("SSL_CERT_FILE"), os.environ.get("PIP_CERT"), str(CERTIFICATES)):
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    return None


def local_links(*values: str) -> dict[str, str]:
    """Wheel directories of this machine and where a build finds them: no path of the machine's stays in an image."""
    names = [link for value in values for link in value.replace(",", " ").split()]
    return {link: f"/run/find-links/{n}" for n, link in enumerate(dict.fromkeys(name for name in names if Path(name).is_dir()))}


def relocated(value: str, links: Mapping[str, str]) -> str:
    """A find-links setting with the build's paths."""
    return " ".join(links.get(link, link) for link in value.replace(",", " ").split())


def mounts(scratch: Path) -> list[Mount]:
    """Write the files into `scratch` and say where each belongs."""
    settings, environment = host_settings(), dict(os.environ)
    links = local_links(settings.get("find-links", ""), environment.get("UV_FIND_LINKS", ""))
    for values, name in ((settings, "find-links"), (environment, "UV_FIND_LINKS")):
        if name in values:
            values[name] = relocated(values[name], links)
    (scratch / "pip.conf").write_text(pip_conf(settings))
    (scratch / "uv.toml").write_text(uv_toml(settings, environment))
    found = [Mount(scratch / "pip.conf", "/etc/pip.conf"), Mount(scratch / "uv.toml", "/etc/uv/uv.toml")]
    certificates = bundle()
    if certificates is not None:
        found.append(Mount(certificates.resolve(), str(CERTIFICATES)))
    return found + [Mount(Path(link), target) for link, target in links.items()]
