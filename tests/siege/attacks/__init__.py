"""The kinds of attack."""

from tests.siege.attacks import command_line, damage, kill, limits

ATTACKS = {
    **{"kill": kill.attack, "damage": damage.attack, "disk": limits.disk},
    **{"command-line": command_line.attack, "memory": limits.memory},
}
