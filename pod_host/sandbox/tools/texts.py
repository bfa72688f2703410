"""What the model is told of the six tools. Short, and exact: each sentence is a promise that a test can hold."""

from __future__ import annotations

from pod_host.limits import (
    BASH_TIMEOUT_MOST_SECONDS,
    BASH_TIMEOUT_SECONDS,
    GLOB_SHOWN,
    GREP_RESULTS,
    LINE_CHARACTERS,
    READ_LINES,
    STREAM_CHARACTERS,
)


def tool_texts(workspace: str) -> dict[str, str]:
    """Each tool's description by its name. ``workspace`` is the directory that commands and relative paths start in."""
    half = f"{STREAM_CHARACTERS // 2:,}".replace(",", " ")
    return {
        "bash": (
            f"Run a command with bash (sh where there is no bash). Each call is a new shell in {workspace}: directory"
            " and variables do not carry over, files and background processes do. Returns exitCode, stdout and stderr;"
            " a non-zero exit code is a normal result. There is no terminal, and stdin is at its end: pass flags and"
            " input instead of waiting for a prompt. Started with &, a server lives on after the call; it is listed"
            f" under background, and is stopped with kill. Timeout: {BASH_TIMEOUT_SECONDS} s unless you set it,"
            f" {BASH_TIMEOUT_MOST_SECONDS} s at most; then everything the call started is killed and exitCode is 124."
            f" Of a stream longer than {half} + {half} characters you get its first and last {half}; stdoutFile and"
            " stderrFile then name the file with the whole of it (its first 64 MiB)."
        ),
        "read": (
            f"Read a text file. Relative paths start in {workspace}. Lines come with their number and a tab, which are"
            f" not part of the file. At most {READ_LINES} lines unless limit says otherwise; read on with offset."
            f" A line is cut after {LINE_CHARACTERS} characters. Not for directories or binary files."
        ),
        "write": (
            f"Create a file, or replace all of its content. Relative paths start in {workspace}; missing directories are"
            " made. The mode of an existing file is kept, and a link is followed. To change a part of a file, use edit."
        ),
        "edit": (
            "Replace one text in a file by another. old_string must be in the file exactly once, as it stands there,"
            " indentation included and without the line numbers that read shows; if it is in more places, add"
            " surrounding lines, or set replace_all. \\n in it also matches \\r\\n, and the file keeps its line ends. It is"
            " no regular expression. UTF-8 text only."
        ),
        "grep": (
            "Search the content of files for a regular expression. pattern has ripgrep's default syntax (Rust regex:"
            " linear time, no look-around and no backreferences), and is matched line by line. Returns path:line:text,"
            f" sorted by path, {GREP_RESULTS} lines at most unless max_results says otherwise. path is a file or a"
            f" directory, {workspace} when left out. glob narrows by file name, such as *.py or *.{{ts,tsx}}. Hidden and"
            " ignored files are searched; .git (unless path is in it) and binary files are not."
        ),
        "glob": (
            "Find files by name. pattern is matched against paths relative to path"
            f" ({workspace} when left out), or against the file name alone when it has no slash: *.csv finds at any"
            " depth, src/**/*.ts below src. * and ? stay within a name, ** crosses directories, {a,b} and [a-z] work."
            " A leading dot must be written: .github/workflows/*.yml. Returns absolute paths of files, sorted,"
            f" {GLOB_SHOWN} at most."
        ),
    }
