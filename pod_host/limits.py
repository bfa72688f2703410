"""Every number of the product: unit, reason and source. A leaf: anyone may import it.

Sections name Harness API v5 where the contract fixes the number; the rest are our own decisions.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# --- Channel (section 1) ---------------------------------------------------------------------------------------------
FRAME_BYTES: Final = 64 * MIB  # HARNESS_MAX_PAYLOAD: the most one frame may hold
FRAGMENT_BYTES: Final = 64 * KIB  # larger frames leave in pieces, so that a ping never waits behind one
SILENCE_SECONDS: Final = 90.0  # nothing heard for so long: the peer is gone
PING_SECONDS: Final = 20.0  # between our own pings: an idle peer that lives is heard by its pongs
HANDSHAKE_SECONDS: Final = 10.0  # the WebSocket upgrade
CLOSE_SECONDS: Final = 2.0  # the closing handshake: a peer that is gone must not hold up a reconnect
LOOP_PIECE_BYTES: Final = 1 * MIB  # the most JSON or base64 done in one go on the event loop

# --- Network gate ----------------------------------------------------------------------------------------------------
GATE_ATTEMPT_SECONDS: Final = 1.0  # one TCP connect
GATE_PAUSE_SECONDS: Final = 0.25  # after an opening: the policy is on its way
GATE_FAILURES: Final = 3  # consecutive failures that prove the policy
GATE_DEADLINE_SECONDS: Final = 120.0  # an open probe for so long is a cluster without the policy

# --- Join, renew, reconnect (section 9) --------------------------------------------------------------------------------
JOIN_TIMEOUT_SECONDS: Final = 15.0  # one join or renew, whole
JOIN_BACKOFF_FIRST_SECONDS: Final = 0.5
JOIN_BACKOFF_MOST_SECONDS: Final = 10.0
RENEW_SECONDS: Final = 300.0  # every five minutes
RENEW_RETRY_SECONDS: Final = (15.0, 30.0, 60.0)  # after a failed renewal: three more chances within a token's 15 min
RECONNECT_FIRST_SECONDS: Final = (0.1, 2.0)  # spread of the first return, so that 200 hosts do not come at once
RECONNECT_MOST_SECONDS: Final = 10.0
RECONNECT_RESET_SECONDS: Final = 10.0  # connected for so long: the backoff starts anew

# --- Life ------------------------------------------------------------------------------------------------------------
WATCHDOG_SECONDS: Final = 60.0  # the event loop stuck for so long: exit 70
DRAIN_SECONDS: Final = 7.0  # SIGTERM to exit; the pod's grace is 10
SLOTS: Final = 8  # runs at once
HOST_THREADS: Final = 8  # for work that waits: small files, hashes, names to resolve
LEASE_PAUSE_FIRST_SECONDS: Final = 0.1  # after a lease that failed, doubled up to
LEASE_PAUSE_MOST_SECONDS: Final = 2.0
RUNS_STOP_SECONDS: Final = 5.0  # the connection is lost: its runs wind down within this

# --- Sandbox ---------------------------------------------------------------------------------------------------------
SANDBOX_UID: Final = 1000
BASH_TIMEOUT_SECONDS: Final = 120
BASH_TIMEOUT_MOST_SECONDS: Final = 600
SETUP_COMMAND_SECONDS: Final = 600.0  # a setup command without a timeout of its own
STREAM_CHARACTERS: Final = 30_000  # of one output stream, to the model: the first and last 15 000
KILL_GRACE_SECONDS: Final = 0.2  # between SIGTERM and SIGKILL
DRAIN_QUIET_SECONDS: Final = 0.1  # after the shell's exit: answer when no byte came for so long
DRAIN_MOST_SECONDS: Final = 1.0  # … or when a child that lives on never stops writing
KILL_MOST_SECONDS: Final = 10.0  # a tree that cannot be killed (it hangs in the kernel) is answered for after so long
SPOOL_STREAM_BYTES: Final = 64 * MIB  # whole outputs kept for the model to read on: one stream
SPOOL_TOTAL_BYTES: Final = 256 * MIB  # and all of them; the oldest go first
COMMAND_TASKS: Final = 2000  # processes and threads of one command: what has more is a fork bomb, and is ended
COMMAND_NICE: Final = 5  # so much less urgent than host and worker are commands
COMMANDS_TASKS: Final = 8000  # of all commands together, where a cgroup holds them: COMMAND_TASKS is counted, and late
COMMANDS_WEIGHT: Final = 25  # of processors and disk, against 100 of host and worker, while there is too little for all
HOST_MEMORY_BYTES: Final = 192 * MIB  # kept from commands where a cgroup holds them; a quarter of a small limit
HOST_TASKS: Final = 64  # likewise
SHELLS_AHEAD: Final = 8  # shells at most that were started before there is a script for them
PROCESSES_NAMED: Final = 50  # of what lives on after a command, or in the sandbox: the others are counted
ARGUMENT_BYTES: Final = 100_000  # a longer script reaches bash by a descriptor: one argument ends at 128 KiB
READ_LINES: Final = 2000
READ_LINES_MOST: Final = 5000
READ_PAGE_BYTES: Final = 512 * KIB  # a page ends early at so much: its outcome must fit RECORD_ENTRY_BYTES
READ_SCAN_BYTES: Final = 512 * MIB  # how far into a file a line is looked for, and lines are counted
EDIT_BYTES: Final = 32 * MIB  # the largest file that is edited: it is held whole, several times over
LINE_CHARACTERS: Final = 2000
GREP_RESULTS: Final = 200
GREP_RESULTS_MOST: Final = 1000
GLOB_SHOWN: Final = 500
GLOB_FILES: Final = 20_000  # matches after which the walk ends
GLOB_PATTERNS: Final = 1000  # that the braces of one pattern may stand for
SEARCH_SECONDS: Final = 60.0  # grep and glob

# --- Relay ---------------------------------------------------------------------------------------------------------------
RELAY_BACKLOG: Final = 128  # clients that wait while a relay that died is replaced
RELAY_START_SECONDS: Final = 30.0  # from exec to its first word, on a machine that has other things to do
RELAY_BACKOFF_FIRST_SECONDS: Final = 0.1  # after a death, doubled up to
RELAY_BACKOFF_MOST_SECONDS: Final = 5.0
RELAY_BACKOFF_RESET_SECONDS: Final = 10.0  # alive for so long: the next death is a new one

# --- Runtime limits (section 3, `limits`): used for a member that TurnStart leaves out -----------------------------------
RECORD_ENTRY_BYTES: Final = 960 * KIB
MODEL_CALL_BYTES: Final = 32 * MIB
MODEL_FILE_BYTES: Final = 8 * MIB
TOOL_ANSWER_BYTES: Final = 8 * MIB
HARNESS_STATE_BYTES: Final = 256 * KIB
CHUNK_BYTES: Final = 16 * MIB
FOLDER_ENTRIES: Final = 10_000

# --- Turn ------------------------------------------------------------------------------------------------------------
YIELD_STEPS: Final = 40  # a longer turn goes on in a new segment
YIELD_SECONDS: Final = 20 * 60.0
MODEL_ATTEMPTS: Final = 4  # a retryable model failure, asked again under a new effect id
GATE_CLIENT_SECONDS: Final = 630.0  # silence of a gate: its own provider timeout is 600 s
GATE_RESENDS: Final = 5  # a lost hop, sent again under the same key
GATE_BACKOFF_FIRST_SECONDS: Final = 0.5
GATE_BACKOFF_MOST_SECONDS: Final = 10.0
GATE_CONNECT_SECONDS: Final = 10.0
ANSWERS_BYTES: Final = 16 * MIB  # of large answers of the Tool Gate, all that a host holds at once; the rest wait
ANSWER_SMALL_BYTES: Final = 64 * KIB  # an answer so short needs no room there
ANSWER_SILENCE_SECONDS: Final = 30.0  # of a gate within a large answer, which holds room
GATE_KEEPALIVE_SECONDS: Final = 30  # TCP keepalive: nothing is sent while a call runs
GATE_IDLE_SECONDS: Final = 4.0  # an idle connection is let go before a server's usual 5 s
TRACES_CLOSE_SECONDS: Final = 1.0  # at the host's end: for the last spans to be sent
CANCEL_SECONDS: Final = 2.0  # a gate call's cancel route
MODEL_RETRY_FIRST_SECONDS: Final = 1.0  # before a retryable model failure is asked again, doubled each time
MODEL_RETRY_MOST_SECONDS: Final = 120.0  # and at most, whatever a provider's retryAfterMs says
YIELD_BYTES: Final = 16 * MIB  # edits of a segment: they leave in one frame, with its output
ANSWER_CALLS: Final = 1000  # tool calls of one answer: one with more is gone wrong, and is asked for again
STEP_CALLS: Final = 64  # tool calls of one step that run; the model is told of the others
STEP_RESULT_BYTES: Final = 256 * KIB  # a step's results together, as JSON: what a model can still read
ENTRY_ENVELOPE_BYTES: Final = 4 * KIB  # of RECORD_ENTRY_BYTES: what an entry holds beside the results
SKILL_FILES: Final = 500  # of one skill
SKILL_PATH_CHARACTERS: Final = 512
SKILL_FILE_BYTES: Final = 10 * MIB
SKILL_BYTES: Final = 64 * MIB  # of one skill, whole: it is held and sent to the worker in one piece
SKILL_CACHE_BYTES: Final = 64 * MIB  # files of skills that a host keeps, by their hash; the least recent go first
SKILL_RANGE_BYTES: Final = 768 * KIB  # of one definition.file: its base64 is one LOOP_PIECE_BYTES
ARTIFACT_RANGE_BYTES: Final = 768 * KIB  # of one artifact.read or chunk: its base64 is one LOOP_PIECE_BYTES
ARTIFACT_PAGE_BYTES: Final = 32 * KIB  # of text that read_artifact gives at once, as JSON
RESULT_INLINE_BYTES: Final = 32 * KIB  # of an MCP or HTTP tool's result, as JSON: what is longer is stored (5b)
RESULT_PREVIEW_BYTES: Final = 5 * KIB  # of one that was stored: four parts of its beginning, one of its end
RESULT_SMALL_BYTES: Final = 1 * KIB  # a text so short is never stored: what would stand for it is as long
RESULT_STUB_BYTES: Final = 512  # of one that was stored when the step's budget was spent
RESULT_DEPTH: Final = 200  # levels of an MCP or HTTP result: whoever encodes it later must not run out of stack
RESULT_PARTS: Final = 32  # of one result that are stored each by itself
STORE_WAIT_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0)  # after each refusal of a store; then the run goes back
INLINE_FILE_BYTES: Final = 128 * KIB  # of one text file of a message, in the prompt; read_artifact reads the rest
INLINE_FILES_BYTES: Final = 512 * KIB  # … and of all of one message
EXPORT_ATTEMPTS: Final = 6  # of the outputs folder, when files change while they are read
TOOL_ASKS: Final = 3  # a call whose gate does not answer: how often one run asks core for it
SCHEMA_DEPTH: Final = 100  # levels of a tool's own schema
SCHEMA_REFERENCES: Final = 10_000  # followed in one check of a call's arguments: a tool's schema is somebody else's
OFFERED_TOOLS: Final = 60  # beyond it MCP tools are deferred, and found by tool_search
FOUND_TOOLS: Final = 40  # that are offered beside them: providers take 128 together
SEARCH_RESULTS: Final = 8  # of one tool_search, unless it asks for others
SEARCH_RESULTS_MOST: Final = 20
SEARCH_DESCRIPTION_CHARACTERS: Final = 300  # of a tool, in a tool_search's result
MCP_LIST_PAGES: Final = 100
MCP_SERVER_BYTES: Final = 4 * MIB  # of what one server lists
MCP_DISCOVERY_SECONDS: Final = 60.0  # one server: a turn begins without one that is slower
MCP_DIAGNOSTIC_CHARACTERS: Final = 500
MCP_TOOL_NAME_CHARACTERS: Final = 256  # a server's own name for a tool
MCP_DESCRIPTION_CHARACTERS: Final = 8000  # of a tool, as the model is offered it
MCP_INSTRUCTIONS_CHARACTERS: Final = 4000  # of one server, in the prompt
MCP_INSTRUCTIONS_TOTAL: Final = 16_000  # … and of all
OUTPUT_CORRECTIONS: Final = 2  # of an answer that does not fit the agent's output schema, in one turn
AGENT_DEPTH: Final = 2  # an agent used as a tool may use others, and those none
AGENT_STEPS: Final = 40  # of one call of an agent used as a tool
AGENTS_SECONDS: Final = 40 * 60.0  # of a segment in which they run: core ends one after 50 min, and all of its turn
AGENTS_AT_ONCE: Final = 8  # of those that one step calls
STOP_SECONDS: Final = 3.0  # a stopped turn: for an aborted command to end, and for what is in hand to be reported
TRANSCRIPT_CACHE_BYTES: Final = 64 * MIB  # of memory, for transcripts of a host's sessions; the least recent go first

# --- Context window (section 6) ------------------------------------------------------------------------------------------
BYTES_PER_TOKEN: Final = 4  # of a prompt's JSON: an estimate, until a model's own count is known
FILE_TOKENS: Final = 1500  # of a file in a prompt: an image's usual cost
ANSWER_TOKENS: Final = 8192  # kept free for an answer when the model's own limit is not known
ANSWER_TOKENS_MOST: Final = 16_384  # … and at most
TAIL_TOKENS_MOST: Final = 20_000  # that a compaction leaves as they are, and at most 30 % of the window
AGED_CHARACTERS: Final = 1000  # of an old tool result, in its short form
SUMMARY_PAYLOAD_CHARACTERS: Final = 2000  # of a tool's input or result, as whoever writes a summary reads it
SUMMARY_TEXT_CHARACTERS: Final = 20_000  # of a message or an answer there
SUMMARY_CALL_TOKENS: Final = 100_000  # of one part of a conversation, when the window is not known
SUMMARY_BYTES: Final = 128 * KIB  # of a summary: longer ones are cut
STATUS_WORKER_SECONDS: Final = 1.0  # `pod-host status`: a worker that says nothing in that time is not there
