# SPDX-License-Identifier: Apache-2.0
"""Holds an embedded store for a measuring program in another process, until standard input ends."""

import argparse
import json
import os
import sys

import transfer_queue as tq

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--conf", type=json.loads, default={})
args = parser.parse_args()

reply = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
tq.init(args.conf)
reply.write(json.dumps({"event": "ready", "address": os.environ["TQ_ADDRESS"]}) + "\n")
sys.stdin.read()
tq.close()
