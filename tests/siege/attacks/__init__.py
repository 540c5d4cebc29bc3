"""The kinds of attack, one file each."""

from tests.siege.attacks import command_line, damage, disk, kill, memory

ATTACKS = {module.NAME: module for module in (kill, damage, disk, command_line, memory)}
