"""Calls of tools that several files of tests make."""

import io
import json
import sys

import pytest

from tests.helpers.data_fixtures import run
from tools.check import __main__ as check
from tools.inspect import __main__ as inspect


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """A function that runs tools.check on a plan: (exit code, its result or its error)."""
    monkeypatch.chdir(tmp_path)

    def call(recipes=None, **plan):
        empty = {"recipes": recipes or {}, "sources": [], "manifests": {}, "initial": {}, "cache": "cache"}
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(empty | plan)))
        capsys.readouterr()
        code = check.main([])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if code == 0 else printed.err.strip()

    return call


@pytest.fixture
def shown(capsys):
    """A function that runs tools.inspect, which must succeed; returns its output."""

    def call(**options):
        capsys.readouterr()
        assert run(inspect, **options) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return call


@pytest.fixture
def refused(capsys):
    """A function that runs tools.inspect, which must refuse; returns the sentence."""

    def call(**options):
        capsys.readouterr()
        assert run(inspect, **options) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return call
