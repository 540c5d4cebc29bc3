"""Training or validation, decided by a hash of the split key alone, so that equal keys are always in the same split."""

import hashlib

TRAIN, VALIDATION = "train", "validation"


def split_of(key: str, fraction: float) -> str:
    """Return `validation` for about `fraction` of all keys, else `train`. A larger fraction only adds keys to it."""
    drawn = int.from_bytes(hashlib.sha256(f"split/{key}".encode()).digest()[:8], "big") / 2**64
    return VALIDATION if drawn < fraction else TRAIN
