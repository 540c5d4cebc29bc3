"""The score of one completion, as lm-evaluation-harness calls it: a copy of this file lies beside the task's own."""

import math


def score(doc, results):
    """{"bits_per_byte": x} of the text `doc["completion"]`. `results`: [(log-likelihood in nats, whatever else)]."""
    ((loglikelihood, _),) = results
    return {"bits_per_byte": -loglikelihood / math.log(2) / len(doc["completion"].encode())}
