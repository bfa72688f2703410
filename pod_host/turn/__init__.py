"""A turn of the agent loop, from its TurnStart to its output (Harness API v5, sections 3 to 8).

turn        one segment: `Turn`                      loop          who decides the next step: the agent loop
model_calls where a model call is about to run       tool_calls    where a tool call is about to run
journal     intent → run → outcome, never twice      toolset       tools, brought by providers (sandbox_tools)
transcripts entries, encoded once, and their cache   projection    entries as prompt items (blocks: of an answer)
prompt      the system text                          results       results that fit
call_bytes  a model call's body and hash             identity      the names of effects
memory      the Agent's memory and its pinned index  wakes         schedule_wake
skills      what the manifest says of skills         skill_files   their files: fetched, verified, mounted
skill_tools load_skill, read_skill_resource          answers       the output: a text, or JSON that fits
tool_gate   calls through the Tool Gate              tool_arguments  checked by a schema that came with a tool
mcp_discovery  the session's MCP servers, found once mcp_tools     their tools (mcp_names, mcp_results)
http_tools  the manifest's HTTP tools                tool_search   tools that are offered once they are found
agents      the agents that manifests use as tools   agent_tools   their calls: loops of their own within the turn
loops       how a loop is made, for each agent       manifests     a manifest's tools and servers, in their forms
stop        the one switch that stops it all         reporting     the output, and what a refused one does
fresh_token a gate's call, with a token that it takes  ports       what a turn is given
"""

from pod_host.turn.endings import Ending, Released, Reported
from pod_host.turn.ports import GatePort, RunPort, SandboxCall, SandboxPort
from pod_host.turn.skill_files import FileCache
from pod_host.turn.tracing import Tracing
from pod_host.turn.transcripts import TranscriptCache
from pod_host.turn.turn import Turn

__all__ = [
    "Ending",
    "FileCache",
    "GatePort",
    "Released",
    "Reported",
    "RunPort",
    "SandboxCall",
    "SandboxPort",
    "Tracing",
    "TranscriptCache",
    "Turn",
]
