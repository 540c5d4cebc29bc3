"""The repair of Snakemake's plugin for Kubernetes; tests/cloud uses the plugin itself."""

from unittest import mock

import pytest

from scripts.executors.others import own_log


class Refused(Exception):
    """An error of the API."""

    def __init__(self, status, reason):
        self.status, self.reason = status, reason


def test_the_log_of_the_container_itself_is_read_and_one_that_is_gone_is_a_sentence():
    told = []
    read = own_log(lambda **options: told.append(options) or "its last line", Refused)
    assert read(name="pod", container="snakemake", previous=True) == "its last line"
    assert told == [{"name": "pod", "container": "snakemake"}]
    gone = mock.Mock(side_effect=Refused(404, "Not Found"))
    assert own_log(gone, Refused)(previous=True) == "the log of the pod cannot be read: Not Found"
    with pytest.raises(Refused):  # the plugin logs in again
        own_log(mock.Mock(side_effect=Refused(401, "Unauthorized")), Refused)(previous=True)
