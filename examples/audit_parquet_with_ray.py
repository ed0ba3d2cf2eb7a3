"""Audit a folder of Parquet files with Ray: which documents carry the mark of a key?

    pip install 'alimark[ray]'
    python audit_parquet_with_ray.py key.json docs/ found/

Workers run on all cores of this machine, or on the cluster that RAY_ADDRESS names. The column `text` holds the documents. The
same run from the command line is `alimark audit -k key.json docs/ -o found/ --engine ray`.
"""

import os
import sys

import pyarrow.parquet

import alimark
from alimark.audit.pool import Cluster
from alimark.audit.run import run
from alimark.audit.worker import Audit


def main() -> None:
    key_file, documents, output = sys.argv[1:4]
    key = alimark.Key.load(key_file)
    audit = Audit.of([key], [documents], output, alimark.DetectionSettings())
    outcome = run(audit, cluster=Cluster(os.environ.get("RAY_ADDRESS"), gpus=0.0))
    print(f"{outcome.summary['documents']} documents")
    rows = pyarrow.parquet.read_table(f"{output}/results").to_pylist()
    for row in sorted(rows, key=lambda row: row["p_value"])[:5]:
        print(f"{row['file']}, row {row['place']}: p = {row['p_value']:.4f}, {row['sentence_count']} sentences")


if __name__ == "__main__":
    main()
