"""Tensors of any parts, mapped from records of torch.save at any place of a file."""

import io
import resource

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from stages.lib.checkpoints import dcp

WHOLE = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
PARTS = {
    "one part": [(0, 6, 0, 4)],
    "rows": [(4, 6, 0, 4), (0, 1, 0, 4), (1, 4, 0, 4)],
    "columns": [(0, 6, 0, 1), (0, 6, 1, 4)],
    "grid": [(0, 3, 0, 2), (3, 6, 0, 2), (0, 3, 2, 4), (3, 6, 2, 4)],
    "with an empty part": [(0, 6, 0, 4), (6, 6, 0, 4)],
}


def written(directory, records):
    """Write tensors by torch.save to one file, 3 bytes apart; returns their places."""
    content, places = b"", []
    for record in records:
        content += b"???"
        saved = io.BytesIO()
        torch.save(record, saved)
        places.append(_StorageInfo("__0_0.distcp", len(content), len(saved.getvalue())))
        content += saved.getvalue()
    (directory / "__0_0.distcp").write_bytes(content)
    return places


def reader(directory, chunks, records, size, dtype=torch.float32):
    """Write the records of chunks, (offsets, sizes), and return a function that reads the tensor."""
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in chunks]
    found = written(directory, records)
    places = {MetadataIndex("w", chunk.offsets): place for chunk, place in zip(chunks, found, strict=True)}
    described = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(size), chunks)
    return lambda: dcp.read(directory, "w", described, places)


def read(*arguments):
    return reader(*arguments)()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", PARTS)
def test_parts_make_the_whole_tensor(tmp_path, name, dtype):
    whole = (100 * WHOLE).to(dtype)
    chunks = [((top, left), (bottom - top, right - left)) for top, bottom, left, right in PARTS[name]]
    records = [whole[top:bottom, left:right].clone() for top, bottom, left, right in PARTS[name]]
    found = read(tmp_path, chunks, records, (6, 4), dtype)
    assert found.dtype == dtype
    assert torch.equal(found, whole)


def test_number_and_tensor_without_elements(tmp_path):
    assert read(tmp_path, [((), ())], [torch.tensor(7)], (), torch.int64).item() == 7
    assert read(tmp_path, [((0, 0), (0, 4))], [torch.empty(0, 4)], (0, 4)).shape == (0, 4)


def test_strides_of_the_record_are_kept_and_a_change_stays_out_of_the_file(tmp_path):
    found = read(tmp_path, [((0, 0), (4, 6))], [WHOLE.t()], (4, 6))
    assert torch.equal(found, WHOLE.t())
    before = (tmp_path / "__0_0.distcp").read_bytes()
    found.zero_()
    assert (tmp_path / "__0_0.distcp").read_bytes() == before


def test_a_gap_between_parts_that_overlap_is_nan(tmp_path):
    found = read(tmp_path, [((0, 0), (3, 4)), ((2, 0), (3, 4))], [WHOLE[:3].clone(), WHOLE[2:5].clone()], (6, 4))
    assert torch.equal(found[:5], WHOLE[:5])
    assert found[5].isnan().all()


@pytest.mark.parametrize("record", [WHOLE[:5].clone(), WHOLE.double(), {"w": WHOLE}, WHOLE.to_sparse()])
def test_record_that_is_not_the_described_tensor_is_refused(tmp_path, record):
    with pytest.raises(Exception, match="must be|meta tensor"):  # torch 2.14 itself refuses a sparse one
        read(tmp_path, [((0, 0), (6, 4))], [record], (6, 4))


def test_reading_costs_no_memory_beyond_the_pages_of_the_file(tmp_path):
    size = (1 << 22, 4)  # 64 MB
    read_again = reader(tmp_path, [((0, 0), size)], [torch.ones(size)], size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(8):
        assert read_again().sum() == size[0] * size[1]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 96 * 1024
