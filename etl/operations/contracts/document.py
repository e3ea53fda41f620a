"""Reads and writes a contract's YAML: by YAML 1.2, in which `no` is a text; quoted where YAML 1.1 reads another value."""

from __future__ import annotations

import datetime as dt
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etl.common.errors import SetupError

VERSION = "v3.1.0"
_PLAIN = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z_][^\n]*", re.IGNORECASE
)  # a text to any YAML


def parsed(text: str) -> Any:
    """Return what a text of YAML has, with days and moments as texts; None where it is no YAML."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return _plain(YAML(typ="safe", pure=True).load(text))
    except (YAMLError, RecursionError):
        return None


def _plain(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {str(name): _plain(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_plain(value) for value in part]
    return part.isoformat() if isinstance(part, dt.date) else part


def dumped(content: Mapping[str, Any]) -> str:
    """Write content as YAML that a person reads, in its order."""
    from ruamel.yaml import YAML
    from ruamel.yaml.representer import SafeRepresenter

    class Representer(SafeRepresenter):
        def represent_str(self, data: str) -> Any:
            style = None if _PLAIN.fullmatch(data) else "|" if "\n" in data else "'"
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

        def ignore_aliases(self, _data: Any) -> bool:
            return True

    Representer.add_representer(str, Representer.represent_str)
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer = Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.allow_unicode = True
    yaml.width = 120
    yaml.indent = 2
    written = io.StringIO()
    yaml.dump(dict(content), written)
    return written.getvalue()


def read_document(file: Path) -> Mapping[str, Any]:
    """Read the file of a contract. Raises SetupError for one that is no contract of ODCS 3."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{file} can't be read: {error}", remedy="name another file") from error
    document = parsed(text)
    remedy = f"give a contract of the Open Data Contract Standard, such as `apiVersion: {VERSION}`"
    if not isinstance(document, Mapping):
        raise SetupError(f"{file} is no YAML with a contract", remedy=remedy)
    if document.get("kind") != "DataContract":
        raise SetupError(f"{file} is no contract: its kind is {document.get('kind')!r}", remedy=remedy)
    if not str(document.get("apiVersion")).startswith("v3."):
        raise SetupError(f"{file} is of ODCS {document.get('apiVersion')}, and 3 is read", remedy=remedy)
    return document
