"""The six tools of the sandbox: ``inputs`` and ``texts`` are the host's, all else is the worker's (``running``)."""
