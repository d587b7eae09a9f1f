"""Loading of server.properties and --override: a ServerConfig, or one sentence for each fault.

in the file or an override                              result
------------------------------------------------------  --------------------------------------------------------------
a key of Kafka with an invalid value                    a fault
keys that contradict each other (checks)                a fault
a security key that is not served yet (serving)         a fault, if a node is to be started
an unknown key in the file                              a warning with the most similar key; a fault with `strict`
an unknown key in an override                           a fault with the most similar key
a key of an older Kafka (REMOVED_KEYS)                  a warning that names its replacement
a key of a plugin (PLUGIN_PREFIXES), a client's key     nothing: Kafka passes it on
the same key twice in the file, or in overrides         a warning; the last one counts, as in Kafka
`strict` without a file                                 a fault: it has nothing to check
keys without meaning here, or not served yet            one line each (serving) in `config.warnings`, if a node is started
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kcli.server.config.key_names import is_plugin_key, key_of, removed_key, unknown_key
from kcli.server.config.server_config import (
    BUILT_IN,
    REQUIRED_DEFAULTS,
    ConfigSource,
    ServerConfig,
    StatedValue,
)
from kcli.server.config.values import ConfigError, parse_value


def load_config(path: str | None, overrides: Sequence[str] = (), *, strict: bool = False, serving: bool = True) -> ServerConfig:
    """Load the configuration of a node from a file (None: BUILT_IN), with overrides (`key=value`) above it.

    With `strict` an unknown key of the file is a fault. With `serving` a node is to be started, and a security key that is not
    served yet is a fault. Raises ConfigError with a sentence for each fault.
    """
    if strict and path is None:
        raise ConfigError("--strict-config is about the keys of a server.properties: name the file, or leave the option out")
    data = None if path is None else _read(path)
    return configure(data, path, overrides, strict=strict, serving=serving)


def configure(
    data: bytes | None, name: str | None, overrides: Sequence[str] = (), *, strict: bool = False, serving: bool = True
) -> ServerConfig:
    """Load the configuration from the bytes of a file, None for no file, as load_config does. Raises ConfigError."""
    faults: list[str] = []
    warnings: list[str] = []
    stated: dict[str, StatedValue] = {}
    if data is None:
        stated = {key: StatedValue(text, ConfigSource.BUILT_IN, "built in") for key, text in BUILT_IN.items()}
    else:
        for key, value in _file_values(data, name or "server.properties", warnings):
            stated[key] = value
    for text in overrides:
        key, equals, value_text = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--override {text} is not valid: it must be key=value")
        if key.strip() == "log.dir" and data is None:
            stated.pop("log.dirs", None)
        if key.strip() in stated and stated[key.strip()].source == ConfigSource.OVERRIDE:
            warnings.append(f"--override {key.strip()} is given twice; the last one counts")
        stated[key.strip()] = StatedValue(value_text.strip(), ConfigSource.OVERRIDE, f"--override {key.strip()}")
    config = ServerConfig(stated, name)
    if data is None and not overrides:
        return config  # BUILT_IN alone, which a test checks
    for key, value in stated.items():
        _check(key, value, strict, faults, warnings)
    from kcli.server.config.checks import cross_faults
    from kcli.server.config.serving import guard_faults, serving_lines

    if not faults and serving:
        faults += guard_faults(config)
    faults = faults or cross_faults(config)
    if faults:
        raise ConfigError(*faults)
    config.warnings = warnings
    if serving:
        config.warnings = warnings + _assumed(config, name) + serving_lines(config)
    return config


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def _file_values(data: bytes, name: str, warnings: list[str]) -> Iterator[tuple[str, StatedValue]]:
    from kcli.server.config.properties_file import PropertiesError, parse_properties

    seen: dict[str, int] = {}
    try:
        properties = parse_properties(data)
    except PropertiesError as error:
        raise ConfigError(f"{name}: {error}") from error
    for key, value, line in properties:
        if key in seen:
            warnings.append(f"{name}: {key} is set twice, on lines {seen[key]} and {line}; the last one counts")
        seen[key] = line
        yield key, StatedValue(value, ConfigSource.FILE, f"{name}, line {line}")


def _check(key: str, value: StatedValue, strict: bool, faults: list[str], warnings: list[str]) -> None:
    """Add the fault or warning of one key and its value."""
    definition = key_of(key)
    if definition is not None:
        try:
            parse_value(definition._replace(name=key), value.text)
        except ConfigError as error:
            faults.append(f"{value.where}: {error}" if value.source == ConfigSource.FILE else f"{error} ({value.where})")
        return
    if is_plugin_key(key):
        return
    removed = removed_key(key)
    sentence = f"{value.where}: {key}: {removed}" if removed else f"{value.where}: {unknown_key(key)}"
    is_fault = value.source == ConfigSource.OVERRIDE or (strict and not removed)
    (faults if is_fault else warnings).append(sentence)


def _assumed(config: ServerConfig, name: str | None) -> list[str]:
    """Return a line about the keys that Kafka requires in a file."""
    if config.file_name is None:
        return []
    assumed = [f"{key}={value}" for key, value in REQUIRED_DEFAULTS.items() if config.text(key) is None]
    if config.text("broker.id") is not None:
        assumed = [text for text in assumed if not text.startswith("node.id")]
    return [f"{name} does not set required keys; {', '.join(assumed)} is assumed"] if assumed else []
