"""The kinds of attack, one file each; `limited` has what disk and memory share."""

from tests.siege.attacks import command_line, damage, disk, kill, memory

ATTACKS = {module.NAME: module for module in (kill, damage, disk, command_line, memory)}
