"""``python -m lakegc_assets.cli.kernels``: makes numba compile its loops, so that no run waits.

numba stores compiled code next to the modules. If that folder is not writable, each run compiles
the code again.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lakegc_assets.checks.witness import paths_of, witness
from lakegc_assets.graveler.decode import (
    FOLDER_DEPTH,
    decode_metarange,
    decode_paths,
    etag_hash,
    etag_hashes,
)
from lakegc_assets.graveler.entry import Entry
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.graveler.ranges import write_metarange, write_range
from lakegc_assets.mark.ranges import decode
from lakegc_assets.run.hashing import address_hashes, key_digest, pair_hashes


def main() -> None:
    """Read a small range with both readers, and hash its contents."""
    namespace = StorageNamespace.parse("s3://bucket/repository")
    entries = [(f"path/{n}", Entry(f"data/slice/{n}", size=n, e_tag="0" * 32)) for n in range(3)]
    info, data = write_range(entries)
    rows, paths = decode_paths(data, info.id)
    decode(namespace, info.id, rows, paths.folders(FOLDER_DEPTH))
    metarange_id, metarange = write_metarange([info])
    decode_metarange(metarange, metarange_id)
    witness(data, info.id, namespace)
    own = np.zeros(1, np.uint64)
    paths_of(data, info.id, [0])
    texts = pa.array(["data/slice/1"])
    etag_hashes(texts)
    etag_hash("0" * 32)
    address_hashes(texts)
    key_digest(texts)
    pair_hashes(own, own)


if __name__ == "__main__":
    main()
