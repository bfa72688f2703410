"""The relay: a forward proxy on loopback, in a process of its own, that passes on to the egress proxy alone and adds its
token. The standard library and the sandbox's system calls are all that it loads."""
