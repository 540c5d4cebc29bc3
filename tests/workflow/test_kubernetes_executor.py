"""The repair of Snakemake's plugin for Kubernetes; tests/cloud uses the plugin itself."""

import pytest

from scripts.executors.others import own_log


class Refused(Exception):
    """An error of the API."""

    def __init__(self, status, reason):
        self.status, self.reason = status, reason


def test_the_log_of_the_container_itself_is_read():
    told = []
    read = own_log(lambda **options: told.append(options) or "its last line", Refused)
    assert read(name="pod", container="snakemake", previous=True) == "its last line"
    assert told == [{"name": "pod", "container": "snakemake"}]


def test_a_log_that_is_gone_is_a_sentence():
    def refuse(**_):
        raise Refused(404, "Not Found")

    assert own_log(refuse, Refused)(previous=True) == "the log of the pod cannot be read: Not Found"


def test_the_plugin_logs_in_again():
    def refuse(**_):
        raise Refused(401, "Unauthorized")

    with pytest.raises(Refused):
        own_log(refuse, Refused)(previous=True)
