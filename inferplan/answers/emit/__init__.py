"""A deployment as the command that starts it, or as Kubernetes objects: what was modelled, flag by flag.

Flags are those of the versions in ``configs/engines`` (docs/planning.md lists where each was read).
"""

from inferplan.answers.emit.checkpoint import base_note, from_catalogue, needed
from inferplan.answers.emit.engines import ENGINES, command, command_line
from inferplan.answers.emit.k8s import Site, manifest, notes
from inferplan.answers.emit.nodes import node_note
from inferplan.answers.emit.options import given
from inferplan.answers.emit.pools import Pools, node_script, script
from inferplan.answers.emit.replica import Drafts, Launch, launch, queue_note
from inferplan.answers.emit.trtllm import trtllm_config

__all__ = [
    "ENGINES",
    "Drafts",
    "Launch",
    "Pools",
    "Site",
    "base_note",
    "command",
    "command_line",
    "from_catalogue",
    "given",
    "launch",
    "manifest",
    "needed",
    "node_note",
    "node_script",
    "notes",
    "queue_note",
    "script",
    "trtllm_config",
]
