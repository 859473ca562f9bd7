"""A deployment as the command that starts it, or as Kubernetes objects: what was modelled, flag by flag.

Flags are those of the versions in ``configs/engines`` (docs/planning.md lists where each was read).
"""

from inferplan.answers.emit.checkpoint import base_note, checkpoint_needs, from_catalogue, online
from inferplan.answers.emit.engines import ENGINES, command, command_line
from inferplan.answers.emit.k8s import Site, manifest, notes
from inferplan.answers.emit.nodes import node_note
from inferplan.answers.emit.options import changed_options
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
    "changed_options",
    "checkpoint_needs",
    "command",
    "command_line",
    "from_catalogue",
    "launch",
    "manifest",
    "node_note",
    "node_script",
    "notes",
    "online",
    "queue_note",
    "script",
    "trtllm_config",
]
