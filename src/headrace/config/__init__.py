"""Configuration: every setting, what it may be, and which layer decides it.

Kinds of value are in `kinds`, the settings in `settings`, and what puts them together in `layers`.
`load` puts the layers together; later ones win:

    built-in defaults
    config/default.toml, config/<profile>.toml, config/local.toml   in the working directory
    --config FILE
    DS_<SECTION>__<KEY>, and RUST_LOG for log.rust_log
    command-line flags

A key that does not exist or a value that is not allowed is refused, even where a later layer
would have hidden it.
"""

from headrace.config.layers import DEFAULT_SOURCE, Loaded, load
from headrace.config.settings import (
    BY_ENV,
    BY_KEY,
    SETTINGS,
    Config,
    ConfigError,
    Http,
    Limits,
    Log,
    Server,
    Setting,
    Storage,
    Tls,
    Webhooks,
    as_text,
    plain,
)

__all__ = [
    "BY_ENV",
    "BY_KEY",
    "DEFAULT_SOURCE",
    "SETTINGS",
    "Config",
    "ConfigError",
    "Http",
    "Limits",
    "Loaded",
    "Log",
    "Server",
    "Setting",
    "Storage",
    "Tls",
    "Webhooks",
    "as_text",
    "load",
    "plain",
]
