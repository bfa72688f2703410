"""The Anthropic SDK's sandbox tools, in the caller's own process: no network, no protocol.
``python anthropic_sdk.py TEXT_FILE``"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from driver import serve  # type: ignore[import-not-found]


async def main(path: Path, text: str) -> None:
    tools: Any = import_module("anthropic.lib.tools.agent_toolset")
    async with tools.AgentToolContext(workdir=str(path.parent)) as context:
        session = await context.bash()
        reader, writer = tools.beta_read_tool(context), tools.beta_write_tool(context)
        editor = tools.beta_edit_tool(context)

        async def true(number: int) -> None:
            assert (await session.exec("true")).exit_code == 0

        async def read(number: int) -> None:
            await reader.call({"file_path": path.name})

        async def write(number: int) -> None:
            await writer.call({"file_path": path.name, "content": text})

        async def edit(number: int) -> None:
            old, new = ("file", "elif") if number % 2 == 0 else ("elif", "file")
            call = {"file_path": path.name, "old_string": old, "new_string": new, "replace_all": True}
            await editor.call(call)

        await serve({"true-session": true, "read": read, "write": write, "edit": edit})


if __name__ == "__main__":
    file = Path(sys.argv[1]).resolve()
    asyncio.run(main(file, file.read_text()))
