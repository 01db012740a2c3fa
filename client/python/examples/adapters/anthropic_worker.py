"""A worker of a self-hosted environment whose tools run in workspaces of jig.

Usage: anthropic_worker.py

Takes work until it is interrupted. Needs JIG_ADDRESS, ANTHROPIC_ENVIRONMENT_ID and
ANTHROPIC_ENVIRONMENT_KEY. With JIG_WORKSPACE, all sessions share that workspace.
"""

import asyncio
import contextlib
import os
import tempfile

from anthropic import AsyncAnthropic
from anthropic.lib.environments import EnvironmentWorker

import jig
from jig.adapters.anthropic import agent_toolset

DAY_SEC = 86_400


async def main() -> None:
    key = os.environ["ANTHROPIC_ENVIRONMENT_KEY"]
    workspace = os.environ.get("JIG_WORKSPACE")
    # The worker stores skills of the session there. Tools do not see it.
    with tempfile.TemporaryDirectory() as directory:
        async with jig.AsyncClient() as client, AsyncAnthropic(auth_token=key) as anthropic:
            worker = EnvironmentWorker(
                anthropic,
                environment_id=os.environ["ANTHROPIC_ENVIRONMENT_ID"],
                environment_key=key,
                tools=agent_toolset(client, workspace=workspace, ttl_sec=DAY_SEC),
                workdir=directory,
            )
            await worker.run()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
