"""What to type after the demo: lines that work as printed."""

from __future__ import annotations

import json
from pathlib import Path
from string import Template
from typing import Final

from stack import deploy, images

_TEXT: Final = Template("""
It goes on running. Next, as typed here:

  export KUBECONFIG=$kubeconfig PATH="$tools:$$PATH"
  kubectl get tpol -A
  KEY=$$(kubectl -n $namespace get secret $policy-key-$tenant -o jsonpath='{.data.api-key}' | base64 -d)
  curl -s $url/v1/models -H "Authorization: Bearer $$KEY"
  curl -s $url/v1/chat/completions -H "Authorization: Bearer $$KEY" -H 'Content-Type: application/json' -d '$body'
  kubectl -n $namespace annotate tpol $policy blockwarden.dev/rotate-salt.$tenant="$$(date +%s)" --overwrite
  kubectl -n $namespace describe tpol $policy

  make demo-down    removes every trace
""")


def next_steps(deployed: deploy.Deployed, url: str) -> str:
    """The commands, with this deployment's names filled in."""
    question = {"role": "user", "content": "What is the capital of France?"}
    return _TEXT.substitute(
        kubeconfig=deployed.cluster.kubeconfig,
        tools=Path(deployed.cluster.kubectl).parent,
        namespace=deploy.NAMESPACE,
        policy=deploy.POLICY,
        tenant=deploy.TENANTS[0],
        url=url,
        body=json.dumps({"model": images.MODEL, "messages": [question], "max_tokens": 16}),
    )
