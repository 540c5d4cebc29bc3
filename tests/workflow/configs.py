"""Changes of a config, and the sentence with which a config is refused."""

import pytest

from scripts.config_check import checked
from stages.lib.errors import UserError

DELETED = "(deleted)"


def change(config, key, value):
    """Set the value of a key whose parents are parted by slashes, or delete it where `value` is DELETED."""
    *parents, last = key.split("/")
    for parent in parents:
        config = config.setdefault(parent, {})
    if value == DELETED:
        del config[last]
    else:
        config[last] = value


def mistake_in(config):
    """The sentence with which a config is refused."""
    with pytest.raises(UserError) as raised:
        checked(config)
    assert "\n" not in str(raised.value)
    return str(raised.value)
