"""The tutorials are followed word by word. The first one: tests/test_demo.py; that of a cluster: tests/slurm."""

import pytest

from tests.docs.tutorials import clone, environment, follow

pytestmark = [pytest.mark.landing, pytest.mark.long, pytest.mark.timeout(1200)]


def test_own_text_and_an_assistant_from_chats(tmp_path):
    directory = clone(tmp_path)
    for name in ("your_text", "assistant"):
        follow(name, directory, environment())
